"""Nodes of a fleet that are killed, stopped and drained under traffic, with real engines."""
