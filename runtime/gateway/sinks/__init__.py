"""Who takes the records of requests, and what residency reports.

tenants.py    ledger and limits, which also act before a request runs
metrics.py    Prometheus and log lines
console.py    the console's last requests
residency.py  loads, sleeps and evictions: metrics, log lines, stored figures
"""
