"""A fleet on a virtual clock, with the policies that answer traffic: `choose`, `place`, epochs and block sizes.

    arrivals ──> fronts (choose over reports) ──> nodes (queue, adapters in places, prefill, decode) ──> figures
                   ^                                │                 ^
                   └────── reports, once a second ──┘   placer (place, epochs) ──> desired replicas

scenario.py  the scenario, read from a file
clock.py     the heap of events
traffic.py   requests: models, adapters, shared prompts, arrivals
nodes.py     a node: its replicas, and the times of an engine
replicas.py  an engine: its queue and adapter places
fronts.py    a front: choices, retries
faults.py    injected faults
limits.py    limits in blocks
world.py     all of these together, and the placer
run.py       one run
figures.py   the results, also of the same requests in one ideal queue for each model

Run it with `python -m fleet.simulation`.

Packets, Python's time on a front and KV cache memory are not simulated. An engine's step takes longer the more requests
run on its device; it is fixed when a request starts. Times are assumptions for a model with about 8 billion parameters
on an H100 (`scenario.Times`), not measurements.
"""
