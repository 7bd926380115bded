"""Embeddings and rerank by sentence-transformers, batched across requests."""
