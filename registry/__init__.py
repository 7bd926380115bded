"""What exists: recipes, catalog, aliases, errors, memory estimates and the state that survives a restart."""
