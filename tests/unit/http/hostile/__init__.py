"""Attacks by clients on routers, models added at run time, and administration.

Attacks with requests for inference are in tests/contract and tests/unit/guard.
"""
