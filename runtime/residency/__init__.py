"""Which model is in memory: what is loaded, what leaves for another, and the one writer that carries it out."""
