"""Checks of a model's files before they are served, in their own process."""
