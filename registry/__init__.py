"""What exists: recipes, catalog, errors, files, and the state across restarts."""
