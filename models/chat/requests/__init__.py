"""What a request to the chat engine may hold: checked before vLLM sees it."""
