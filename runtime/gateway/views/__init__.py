"""What is told of models and adapters to whoever asks. Values only, no live objects."""
