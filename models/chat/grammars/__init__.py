"""Check grammars of all kinds before vLLM sees them.

`sizes.py` checks the size. `checker.py` is the slot's side: one check at a time, cached, cancelled when the client
leaves. `process.py` is the other side: it compiles each grammar in its own process, with bounds on time and memory.
What vLLM itself does with a grammar, and our changes to that, are in `models/chat/vllm/grammars.py`.
"""
