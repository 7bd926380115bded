"""The simulation of a fleet: what must come out of it, whatever the seed."""
