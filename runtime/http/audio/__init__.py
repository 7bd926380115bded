"""Transcription and translation as OpenAI has them."""
