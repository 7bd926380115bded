"""Routers in a running server.

store.py       the routers and their versions
requests.py    the features of a request that a router sees
dispatcher.py  facts about the targets, and the decision
"""
