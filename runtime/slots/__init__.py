"""Slots: processes that hold one engine each.

On the gateway's side: `link` (the interface), `unix_link` (the link to a process on this machine), `frames` and the
`pool` of slots. On the slot's own side: `server`, inside a LitServe `worker`. Only `unix_link` and `processes` know
that the process runs on this machine. Not here: which model is loaded where (`runtime.residency`), the order of
requests (`runtime.scheduling`), HTTP.
"""
