"""Adapters on a CPU, against unpatched vLLM."""
