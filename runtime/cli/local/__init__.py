"""What belongs to this machine: the data directory, processes of the server, its announcement."""
