"""Providers as the gateway has them: which names are theirs, a backend that asks them, and what is told of them.

What is sent and what becomes of failures: `routing.providers`.
"""
