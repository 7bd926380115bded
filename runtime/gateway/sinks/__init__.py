"""Receivers of request records and residency events.

tenants.py    the ledger and the limits, which also act before a request runs
operators.py  Prometheus, log lines and the console's last requests
residency.py  loads, sleeps and evictions: metrics, log lines, stored measurements
"""
