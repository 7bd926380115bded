"""Routers over HTTP: endpoints, explanations, and `model_used` in answers."""
