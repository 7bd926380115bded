"""What nodes report, and the policies of a fleet: no server, no network."""
