"""Tools shared by all packages: processes, threads, cgroups, wording, JSON, lazy imports."""
