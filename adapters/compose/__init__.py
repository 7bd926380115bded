"""New weights from stored adapters: `combine` several, or `merge` one into a base.

Both run through peft in a process of their own (`process`), the only one that imports torch and peft. `jobs` has its
messages, `plan` chooses peft's method, `run` starts it. Nothing here registers: the result of `combine` is registered
as any other adapter.
"""
