"""LoRA adapters: read and validate, content-addressed store, versions and aliases, placement, the vLLM plug-in."""
