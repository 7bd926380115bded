"""A look into a model's files before they are served, in a process of its own."""
