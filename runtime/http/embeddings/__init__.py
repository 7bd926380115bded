"""Embeddings as OpenAI and Text Embeddings Inference have them."""
