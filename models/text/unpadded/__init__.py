"""Encoders on a GPU without padding: inputs one behind another, and attention that knows where each of them ends."""
