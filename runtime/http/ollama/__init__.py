"""Ollama's dialect for its many clients: chat, text, embeddings and the list of models."""
