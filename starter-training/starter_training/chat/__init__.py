"""Makes the starter chat model: a tiny Llama base and twenty LoRA adapters."""
