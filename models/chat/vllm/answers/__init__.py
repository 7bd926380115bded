"""Answers that vLLM generates: reasoning, text, tool calls and the bytes of tokens."""
