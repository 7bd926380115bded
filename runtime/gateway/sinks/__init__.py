"""Who hears what happened: request records as metrics and log lines; residency's news as metrics, logs and figures.

The ledger of teams hears how a request begins, too.
A trace would be one more file. What a record holds is said in `runtime.gateway.record`.
"""
