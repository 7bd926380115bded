"""The order of requests: classes with floors, teams and keys by weight, then the earliest deadline; pools.

Pure: no clock, no I/O, no adapters. Work is in the units of `QueueRequest.work`.
"""
