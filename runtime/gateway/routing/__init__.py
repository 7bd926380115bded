"""Routers in a running server.

store.py       which there are, with their versions
requests.py    what a router sees of a request
dispatcher.py  what is known of their targets, and the decision
"""
