"""A slot is one process that holds one engine.

On the gateway's side: `link` (the protocol), `unix_link` (the link on this machine), `frames` and the `pool` of slots.
On the slot's own side: `loop`, inside a LitServe `worker`. Only `unix_link` and `processes` know that the process runs
on this machine. Not here: which model is loaded where (`runtime.residency`), the order of requests
(`runtime.scheduling`), HTTP.
"""
