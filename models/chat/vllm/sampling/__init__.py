"""Ways of sampling that vLLM has not."""
