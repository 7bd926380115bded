"""Nodes of a fleet are killed, stopped and drained under traffic, with real engines."""
