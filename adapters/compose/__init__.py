"""New weights from stored adapters: `combine` several, or `merge` one into a base.

Both run through peft in a process of their own (`process`), the only one that imports torch and peft. `jobs` has its
messages and starts it, `plan` chooses peft's method. Nothing here registers: the result of `combine` is registered as
any other adapter.
"""
