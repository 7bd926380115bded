"""Rerank and pair scores in the dialects of Jina, Cohere, Text Embeddings Inference and vLLM."""
