"""The starter chat model: a tiny Llama base and twenty LoRA adapters, with the scripts that make them."""
