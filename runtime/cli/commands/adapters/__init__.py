"""`roundhouse adapters`: LoRA adapters of a server."""
