"""Other servers of the fleet: their membership, their models, and forwarding requests to them.

service.py        the fleet as the rest of the gateway sees it: joining, following, leaving
opening.py        makes all of these and connects them to the server
views.py          views of its members, and of models and adapters of other nodes
placing.py        moves models between the nodes: one server plans, and each node follows
planning.py       views of that plan and of choices, and placement by hand
backend.py        chooses the node that answers, and makes the attempt there
connection.py     connections to other servers, with TLS and timeouts
wire/             the same for requests whose bodies are in memory, cheaper than aiohttp
hop.py            facts about a request that are sent along with the client's bytes
following.py      reads the reports of each node
reporting.py      writes this node's own reports, and measures its requests for them
names.py          the models and adapter files of each node
sharing.py        applies changes of shared names to this server
pulling.py        copies missing files from other servers
conversations.py  asks other servers for the target of a router's conversation

A server that belongs to no fleet imports nothing from here.
"""
