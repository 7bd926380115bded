"""Benchmarks: running servers, driven over HTTP, beside what a user would pick instead, in one run.

`python -m benchmarks` runs them (`make bench`). Every benchmark is seeded and warmed up, takes turns between the
servers round by round (A B A B), gives medians over rounds with their lowest and highest, and CPU seconds from the
operating system beside latency. Failed requests are counted and shown, never dropped.
"""
