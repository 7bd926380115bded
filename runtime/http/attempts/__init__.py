"""Attempts at one request: one after the other (`again.py`), or a second beside one that is late (`hedging.py`).

What may be tried where is told by the backends (`runtime.gateway.backend`); what becomes of one attempt is `first.py`.
"""
