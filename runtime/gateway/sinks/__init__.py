"""Receivers of request records and residency events.

tenants.py    the ledger and the limits, which also act before a request runs
metrics.py    Prometheus and log lines
console.py    the console's last requests
residency.py  loads, sleeps and evictions: metrics, log lines, stored measurements
"""
