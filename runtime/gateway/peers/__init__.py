"""Other servers of the fleet: who they are, what they have, and the way of a request to one of them.

service.py     the fleet as the rest of the gateway sees it; it joins, follows and leaves
viewing.py     its members as people see them
backend.py     which node answers, and the attempt there
connection.py  connections to other servers, with TLS and bounds on every silence
wire/          the same for requests whose bodies are in memory, without aiohttp's price
hop.py         what is told of a request beside the client's bytes
following.py   reads the reports of each node
reporting.py   makes this node's own reports
names.py       what nodes have: models, and files of adapters
sharing.py     brings changes of shared names to this server
pulling.py     copies files that this server lacks
conversations.py  asks other servers where a router's conversation is

Nothing here is imported by a server that belongs to no fleet.
"""
