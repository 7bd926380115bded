"""Who runs next on one model: its queue, leases, which adapter is in which place, and probes of adapters.

The order and the places are decided by pure policies (`waiting`, `placement`); `queue` and `effects` carry them out.
Not here: whether the model is in memory at all (`residency`), and what the engine does (`models`).
"""
