"""Adapters in vLLM's worker: from a file into host memory (`file`, `read`), into a place and out of it (`stage`).

`manager` keeps vLLM's own code from loading any. What EngineCore is asked for is `core` above this folder.
"""
