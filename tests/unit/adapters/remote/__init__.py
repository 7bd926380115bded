"""Adapters that are somewhere else, and the requests that name them."""
