"""Stored Responses: the steps before and after the engine, and the paths to them.

conversation.py  items and fields, without any I/O
recording.py     POST /v1/responses of teams that store: expand, answer, store; background work
endpoints.py     get, delete, list the input, cancel

The engine never knows: it gets the whole conversation, and its answers get our id.
"""
