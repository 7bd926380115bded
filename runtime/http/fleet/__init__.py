"""The fleet's port: requests that other servers forward, this node's reports, and files of its adapters.

app.py     the application of that port: inference, changes of names, and paths for other servers: reports, files of
           adapters and routers, conversations with their home here
hops.py    caller and weights of a forwarded request, from a header that the public port drops
pages.py   the pages Now and Requests of another server's console
fronts.py  requests that a front forwards to a node, or refuses
"""
