"""Rerank and scores of pairs as Jina, Cohere, Text Embeddings Inference and vLLM have them."""
