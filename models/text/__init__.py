"""Embeddings and rerank by sentence-transformers, with batches made across requests. Chat models are not here."""
