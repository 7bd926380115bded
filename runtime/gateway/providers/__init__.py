"""Providers in the gateway: index of names, backend, and views.

What is sent and what becomes of failures: `routing.providers`.
"""
