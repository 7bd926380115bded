"""Who goes first: classes with a floor for each, teams and their keys by weight, then the earliest deadline; pools.

Pure: no clock, no I/O, no adapters. `runtime.scheduling.placement` asks it; work is in `QueueRequest.work`'s units.
"""
