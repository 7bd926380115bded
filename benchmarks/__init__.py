"""Benchmarks: running servers, driven over HTTP, compared in one run with what a user would pick instead.

`python -m benchmarks` runs them (`make bench`). Every benchmark is seeded and warmed up, lets the servers take turns
round by round (A B A B), and reports the median, lowest and highest over rounds, with CPU seconds from the operating
system as well as latencies. Failed requests are counted and shown, never dropped.
"""
