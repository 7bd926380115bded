"""OpenAI's and Anthropic's chat endpoints. vLLM's own application answers; bodies and answers are forwarded."""
