"""Adapters in vLLM's worker: read from file into host memory, staged, placed and dropped.

`manager` keeps vLLM's own code from loading any. EngineCore's calls are in `core` above this folder.
"""
