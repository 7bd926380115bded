"""Text Generation Inference's and LoRAX's dialect, based on vLLM's completions."""
