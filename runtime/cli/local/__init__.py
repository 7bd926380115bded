"""What belongs to this machine: data directory, server processes, announcement."""
