"""Providers in the gateway: index of names, backend, and views.

Requests to providers and the handling of their failures are in `routing.providers`.
"""
