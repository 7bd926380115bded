"""Adapters at other places, and requests that name them by their source."""
