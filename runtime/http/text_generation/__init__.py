"""Text Generation Inference's and LoRAX's dialect, over vLLM's completions."""
