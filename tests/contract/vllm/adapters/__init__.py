"""Adapters in vLLM's own structures, against unpatched vLLM."""
