"""Several servers as one: what the hop, shared names, copies of adapters and the policies cost.

servers.py     PostgreSQL, nodes with the scripted engine, fronts, and HAProxy
bare.py        a minimal proxy built from a front's libraries
hop.py         what a front adds to the first token and costs per token, compared with HAProxy
crowds.py      many paced streams at once, over any servers
streams.py     two nodes compared with one; many slow streams over two fronts
policies.py    `choose` and reports, in their own process
names.py       a changed alias on sixteen fronts
copies.py      an adapter copied from a peer
simulated.py   the simulation of 1,000 nodes
acceptance.py  how many paced streams a large machine carries
run.py         runs all of these
"""
