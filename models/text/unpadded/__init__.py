"""Encoders on a GPU without padding: concatenated inputs, and attention within each input."""
