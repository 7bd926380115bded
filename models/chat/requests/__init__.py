"""Check and adapt a chat request before vLLM sees it."""
