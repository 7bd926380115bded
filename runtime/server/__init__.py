"""The process around everything: settings, the device, logs, start, and a stop that drains.

All that touches LitServe is here and in `runtime.slots.worker`. Not here: what the server does (`runtime.gateway`).
"""
