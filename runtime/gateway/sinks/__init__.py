"""Receivers of request records.

tenants.py    the ledger and the limits, which also act before a request runs
operators.py  Prometheus, log lines and the console's last requests
"""
