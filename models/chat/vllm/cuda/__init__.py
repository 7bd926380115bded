"""GPU-only code beside adapters: memory for sleeping."""
