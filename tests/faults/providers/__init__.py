"""Providers that fail at random, for minutes."""
