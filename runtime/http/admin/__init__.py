"""Our own interface: models, adapters, health, metrics, status. What they do is in `runtime.gateway`."""
