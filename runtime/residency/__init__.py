"""Decide which models are in memory, and which are evicted for others."""
