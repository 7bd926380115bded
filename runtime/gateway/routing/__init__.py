"""Routers in a running server: which there are, what they are told of a request, who was chosen.

keeper.py         the routers that there are, with their versions
requests.py       what a request tells, from the calls that it would make
targets.py        what is known of targets now
conversations.py  which target a conversation has
switch.py         the decision for traffic and for explain, made in one place
"""
