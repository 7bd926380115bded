"""Which texts of which requests share a step: a pure plan, and the thread that carries it out."""
