"""Changes that Roundhouse makes to vLLM, and what it uses beyond the documented interface.

`touches.py` lists each place with its reason; tests/contract/vllm/test_touches.py fails when one moves. `plugin.py` is
what vLLM calls in each of its processes, `launch.py` what the engine calls. Nothing else in the product imports vLLM's
insides.
"""
