"""The simulation of a fleet, whose results must hold for any seed."""
