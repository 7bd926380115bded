"""Ollama's dialect: chat, text, embeddings and its list of models, for its many clients."""
