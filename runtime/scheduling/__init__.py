"""Where requests wait for a model's turn: one queue per model, the rank that orders it, and the lease that ends the
waiting. `placement` decides who starts and which adapter is where (pure: no clock, no I/O); `effects` carries it out.

Not here: which models are in memory (`runtime.residency`), the wire to engines (`runtime.slots`), what a name means and
who may ask (`runtime.gateway`), and the batches inside the engines for texts (`models.batching`).
"""
