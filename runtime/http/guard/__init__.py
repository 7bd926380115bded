"""Checks before the application: keys, sizes and speeds of requests.

origin.py      the hosts, origins and content types that are allowed, and the outermost ASGI layer that checks them
keys.py        the ASGI layer behind it: whose key a request carries
access.py      which scope a request needs, from the route table
bodies.py      the ASGI layer that bounds the size of bodies, also decoded, and how slowly they may arrive
memory.py      which bodies may be in memory, and which gives way to another: a policy without I/O
protocol.py    the HTTP parser's connection: bytes of headers, deadlines, idle connections, errors as JSON

What a request means is not decided here.
"""
