"""Our own interface: models, adapters, health, metrics, status."""
