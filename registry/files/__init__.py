"""What a model's files tell without being loaded: shape, weights, dtypes, context; and hub listings."""
