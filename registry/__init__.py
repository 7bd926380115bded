"""Recipes, the catalog, errors, files, and the state that survives restarts."""
