"""JSON schemas: what is enforced is, and what vLLM declares is what is committed."""
