"""Decide which models are in memory, and which leave for others."""
