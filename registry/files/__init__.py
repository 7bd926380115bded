"""Facts from a model's files before a load: shape, weights, context, sources."""
