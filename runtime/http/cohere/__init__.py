"""Cohere's v2 chat and embeddings. Its rerank shares paths with other dialects and is in `runtime.http.rerank`."""
