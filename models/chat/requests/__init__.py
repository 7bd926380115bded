"""Checks of a chat request before vLLM sees it."""
