"""What a model's files tell before a load: shape, weights, context, sources."""
