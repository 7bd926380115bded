"""GPU-only code other than for adapters: memory for sleeping."""
