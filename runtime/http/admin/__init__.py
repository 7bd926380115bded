"""Our own API: models, adapters, health, metrics, status."""
