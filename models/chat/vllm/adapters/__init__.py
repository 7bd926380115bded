"""Adapters in vLLM's worker: from a file into host memory (`read`), into a place and out of it (`stage`).

`manager` keeps vLLM's own code from loading any. EngineCore's calls are in `core` above this folder.
"""
