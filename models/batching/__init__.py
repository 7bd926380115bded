"""Sharing of steps by texts: a pure plan, and the threads that run it."""
