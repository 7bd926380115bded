"""Transcription and translation in OpenAI's dialect."""
