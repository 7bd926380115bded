"""Routers in a running server.

store.py       the routers and their versions
dispatcher.py  the features of a request, facts about the targets, and the decision
"""
