"""OpenAI's and Anthropic's chat family. vLLM's own application answers; bodies and bytes are passed on."""
