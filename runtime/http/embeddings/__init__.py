"""Embeddings in the dialects of OpenAI and Text Embeddings Inference."""
