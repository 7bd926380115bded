"""This machine's parts of the command line: data directory, processes, announcement."""
