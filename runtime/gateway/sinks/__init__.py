"""Who hears what happened: request records as metrics and log lines; residency's news as metrics, logs and figures.

A ledger or a trace would be one more file. What a record holds is said in `runtime.gateway.record`.
"""
