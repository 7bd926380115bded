"""Text Generation Inference's and LoRAX's dialect, written anew from vLLM's completions."""
