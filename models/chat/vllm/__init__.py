"""Changes to vLLM, and uses of its undocumented parts.

`touches.py` lists each of them with its reason; tests/contract/vllm/test_touches.py fails if one moves. vLLM calls
`plugin.py` in each of its processes; the engine calls `launch.py`. Nothing else in the product imports vLLM's
internals.
"""
