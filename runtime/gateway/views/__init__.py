"""Views of models, adapters and the server: values without live objects."""
