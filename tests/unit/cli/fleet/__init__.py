"""`roundhouse fleet`, and why a server may not join a fleet."""
