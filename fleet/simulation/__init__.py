"""A fleet on a virtual clock, with the policies that answer traffic: `choose`, `place`, epochs and block sizes.

    arrivals ──> fronts (choose over reports) ──> nodes (queue, adapters in places, prefill, decode) ──> figures
                   ^                                │                 ^
                   └────── reports, once a second ──┘   placer (place, epochs) ──> desired replicas

scenario.py  what is simulated, as a file says it
clock.py     the heap of events
traffic.py   requests: models, adapters, shared prompts, arrivals
nodes.py     a node: queue, places of adapters, times of an engine
fronts.py    a front: choices, retries
faults.py    what goes wrong, and when
limits.py    limits in blocks
world.py     all of these together, and the placer
run.py       one run
ideal.py     the same requests in one ideal queue for each model
figures.py   what came out

It runs in a process of its own: `python -m fleet.simulation`.

What it leaves out: packets, Python's own time on a front, memory of a KV cache. An engine's step takes longer the more
requests run on its device; that is fixed when a request starts. Times are assumed, for about a model of 8 billion
parameters on an H100 (`scenario.Times`); they were not measured.
"""
