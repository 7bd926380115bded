"""Propose a recipe for a model, with a reason for each value. Pure."""
