"""Receivers of request records and residency events.

tenants.py    ledger and limits, which also act before a request runs
metrics.py    Prometheus and log lines
console.py    the console's last requests
times.py      durations by model, for a node's reports to its fleet
residency.py  loads, sleeps and evictions: metrics, log lines, stored figures
"""
