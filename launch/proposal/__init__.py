"""The recipe that is proposed for a model: each value with its reason. Pure."""
