"""Other servers of the fleet: their membership, their models, and forwarding requests to them.

service.py     the fleet as the rest of the gateway sees it: joining, following, leaving
viewing.py     views of its members
backend.py     chooses the node that answers, and makes the attempt there
connection.py  connections to other servers, with TLS and timeouts
wire/          the same for requests whose bodies are in memory, cheaper than aiohttp
hop.py         facts about a request that are sent along with the client's bytes
following.py   reads the reports of each node
reporting.py   writes this node's own reports
names.py       the models and adapter files of each node
sharing.py     applies changes of shared names to this server
pulling.py     copies missing files from other servers
conversations.py  asks other servers for the target of a router's conversation

A server that belongs to no fleet imports nothing from here.
"""
