"""Adapters in vLLM's worker: read from a file into host memory, staged, placed and dropped.

`manager` prevents vLLM's own code from loading any. EngineCore's calls are in `core` in the parent folder.
"""
