"""Which texts share a step: a pure plan, and the threads that run it."""
