"""Parts of the command line that concern this machine: data directory, processes, announcement."""
