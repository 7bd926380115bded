"""LoRA adapters as files: read and validate, content-addressed store, versions and aliases; and their placement."""
