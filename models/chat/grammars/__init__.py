"""Try out grammars of all kinds before vLLM sees them.

`sizes.py` refuses by size alone. `checker.py` is the slot's side: one at a time, cached, cancelled when the client
leaves. `process.py` is the other side: compiles each in a process of its own, with bounds on time and memory. What vLLM
itself does with a grammar, and what is changed there, lies in `models/chat/vllm/grammars.py`.
"""
