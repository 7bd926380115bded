"""What stands between the network and the application: who may call, how much a request may bring, and how slowly.

origin.py      hosts, origins and content types that are let in: a policy without I/O
door.py        that policy as the outermost ASGI layer
keys.py        whose key a request shows, as an ASGI layer behind it
access.py      which scope a path needs
bodies.py      an ASGI layer that bounds the size of bodies, and how slowly they may come
memory.py      which bodies may be in memory, and which gives way to another: a policy without I/O
protocol.py    the HTTP parser's connection: bytes of headers, deadlines, errors as JSON
idle.py        connections that wait for a request, and which of them goes when there are too many

What a request means is not decided here.
"""
