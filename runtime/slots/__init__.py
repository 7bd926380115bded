"""One slot is one process that holds one engine. On the gateway's side: the link to it (`link`, a protocol;
`unix_link` on this machine), its frames, and the pool of all slots. On its own side: `loop`, in a worker of LitServe's.

Only `unix_link`, `death`, `memory` and `address` know that the process runs on this machine.
Not here: which model goes into which slot and when (`runtime.residency`), who is next (`runtime.scheduling`), HTTP.
"""
