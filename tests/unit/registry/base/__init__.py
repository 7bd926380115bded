"""The lowest layer of the registry: processes, threads, sessions, imports."""
