"""Several servers as one: what the hop, shared names, copies of adapters and the policies cost.

servers.py   PostgreSQL, nodes with the scripted engine, fronts, and HAProxy
bare.py      a bare proxy of the libraries of a front
hop.py       what a front adds to first tokens and costs for a token, beside HAProxy
crowds.py    many paced streams at once, over any servers
streams.py   two nodes over one; many slow streams over two fronts
policies.py  `choose` and reports, in a process of their own
names.py     a changed alias on sixteen fronts
copies.py    an adapter from a peer
simulated.py the simulation of 1,000 nodes
run.py       all of these
"""
