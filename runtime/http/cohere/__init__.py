"""Cohere's v2 chat and embeddings. Its rerank is in `runtime.http.rerank`, beside the dialects that share its paths."""
