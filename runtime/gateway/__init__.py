"""The gateway: inference (`core`) and use cases (`services`), made in `opening`.

Here: a request and its record (`context`, `request`, `record`, `sinks`), what answers it (`target`, `backend`, `local`,
`providers`), and what may be done with models, adapters and routers.
Not here: HTTP and its dialects (`runtime.http`), order in a queue (`scheduling`), what is in memory (`residency`).
"""
