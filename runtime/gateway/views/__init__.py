"""Views of models, adapters and the server. Values only, no live objects."""
