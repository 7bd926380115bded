"""New weights from stored adapters: `combine` several, or `merge` one into a base.

Both use peft in a separate process (`process`), the only one that imports torch and peft. `jobs` defines its messages
and starts it; its `plan` chooses peft's method. Results are not registered here: that of `combine` is registered like
any other adapter.
"""
