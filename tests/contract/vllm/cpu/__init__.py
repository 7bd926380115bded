"""Adapters on a CPU, against vLLM as it is."""
