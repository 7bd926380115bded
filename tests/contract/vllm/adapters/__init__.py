"""Adapters in vLLM's own structures, against vLLM as it is."""
