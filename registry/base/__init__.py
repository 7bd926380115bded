"""Shared tools that are no registry: processes, threads, cgroups, wording, JSON, libraries imported late."""
