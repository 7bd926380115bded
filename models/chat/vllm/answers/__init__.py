"""Answers that vLLM generates: reasoning, text, tool calls, bytes and logprobs of tokens."""
