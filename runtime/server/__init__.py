"""The server process: LitServe's hooks, the start, and the draining shutdown.

Everything that touches LitServe is here and in `runtime.slots.worker`. Not here: what the server does
(`runtime.gateway`), its settings and device (`runtime.config`).
"""
