"""The fleet's port: requests that other servers pass on, this node's reports, and files of its adapters.

app.py        the application of that port: inference, changes of names, paths for servers, nothing else
hops.py       a passed-on request's caller and weights, from a header that is dropped on the public port
own_paths.py  paths for the other servers: reports, files of adapters and routers, conversations with their home here
pages.py      Now and Requests of another server's console
fronts.py     what a front passes on, or refuses
passing.py    passes changes of names on to a node
"""
