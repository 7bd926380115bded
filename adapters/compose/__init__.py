"""New weights from adapters that are stored: one of several (`combine`), or base and adapter as one model (`merge`).

Both run in a process of their own (`process`), through peft. Only that process imports torch and peft; `jobs` is what
it is told and answers, `plan` chooses peft's way, `run` starts it. Nothing here registers: what `combine` makes goes
the way of every other adapter.
"""
