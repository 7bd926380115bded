"""JSON schemas: the ones that grammars enforce, and the ones that vLLM declares."""
