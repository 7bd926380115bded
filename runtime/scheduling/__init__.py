"""Model queues: waiting requests, the next to start, and adapters in places.

`placement` decides (pure: no clock, no I/O) and `effects` carries it out.
Not here: which models are in memory (`runtime.residency`), the wire to engines (`runtime.slots`), names and access
(`runtime.gateway`), and batches inside the engines for texts (`models.batching`).
"""
