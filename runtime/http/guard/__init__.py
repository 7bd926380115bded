"""Checks before the application: keys, sizes and speeds of requests.

origin.py    allowed hosts, origins and content types, checked in the outermost ASGI layer
keys.py      the ASGI layer behind it, which finds the caller by its key
access.py    the scopes that a request needs, from the route table
foreign.py   advice on paths that other servers have
bodies.py    the ASGI layer that bounds the size of bodies, encoded and decoded, and their pace
memory.py    the policy, without I/O, for which bodies stay in memory
protocol.py  the HTTP connection: bytes of headers, timeouts, idle connections, errors as JSON
layers.py    builds the layers and uvicorn's options from the settings

Nothing here interprets a request.
"""
