"""Which model is where, what must leave for another to come, and the one writer that carries it out."""
