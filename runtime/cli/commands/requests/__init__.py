"""Commands that send a request: `chat`, `embed`, `rerank`, `transcribe`."""
