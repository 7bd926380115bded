"""Providers in the gateway: the index of their names, their backend, and their views.

What is sent and what becomes of failures: `routing.providers`.
"""
