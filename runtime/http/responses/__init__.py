"""Stored Responses: the steps before and after the engine, and the endpoints for them.

conversation.py  items and fields, without any I/O
recording.py     POST /v1/responses for teams that store: expand, answer, store; background work
endpoints.py     get, delete, list the input, cancel

The engine is not involved: it gets the whole conversation, and its answers get our id.
"""
