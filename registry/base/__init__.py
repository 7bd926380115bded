"""Shared tools below every room: processes, threads, cgroups, wording, JSON, libraries imported late."""
