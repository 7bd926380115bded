"""Which texts of which requests share a step: a pure plan, and the threads that run it."""
