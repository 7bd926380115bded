"""Model queues: waiting requests, which one starts next, and which adapters occupy the device places.

`placement` decides (pure: no clock, no I/O) and `effects` carries out its plans.
Not here: which models are in memory (`runtime.residency`), the protocol to the engines (`runtime.slots`), names and
access (`runtime.gateway`), and batching inside the text engines (`models.batching`).
"""
