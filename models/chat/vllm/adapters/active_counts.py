"""`specialize_active_lora`: CUDA graphs for few adapters in a batch, with room for the rows of the base.

vLLM chooses the graph by the number of adapters, and its kernels count the base's rows as one more group, the first.
In a graph for exactly as many adapters as there are, the last adapter's rows would be left out when the base answers in
the same batch: they would get the base's answer, without an error. Here each graph is chosen for one group more.

vLLM captures for each power of two. Each case is captured for every size of batch, so here there are four. The largest
is captured with all adapters and no row of the base, so none may be for one group fewer: its kernels would run those.
"""

from __future__ import annotations

from typing import Any

FEW = (1, 4, 8)
"""Adapters in a batch for which there are graphs, beside those for all."""


def captured_counts(max_loras: int, specialize: bool) -> list[int]:
    """Groups that graphs are captured for: adapters and the base."""
    few = [count + 1 for count in FEW if count + 1 < max_loras] if specialize else []
    return [*few, max_loras + 1]


def active_groups(lora_config: Any, lora_state: Any, req_ids: list[str], dummy_run: bool) -> int:
    """Groups that the graph of a step must have room for; 0: no adapter is in it."""
    if not lora_config:
        return 0
    if dummy_run:
        return int(lora_config.max_loras) + 1
    adapters = len(lora_state.get_activate_loras(req_ids))
    return adapters + 1 if adapters else 0


def patch(users_of_counts: list[Any], runner: Any) -> None:
    """`users_of_counts`: modules that hold vLLM's `get_captured_lora_counts`; `runner`: of the second model runner."""
    for module in users_of_counts:
        module.get_captured_lora_counts = captured_counts
    runner.get_num_active_loras_for_dispatch = active_groups
