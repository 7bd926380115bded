"""`specialize_active_lora`: CUDA graphs for few adapters in a batch, with room for the rows of the base.

vLLM chooses the graph by the number of adapters, but its kernels count the base's rows as an additional first group. In
a graph for exactly that many adapters, the last adapter's rows would be skipped if the base answers in the same batch,
and silently get the base's answer. So here each graph is chosen for one more group.

vLLM captures graphs for each power of two. Each is captured for every batch size, so here there are only four. The
largest is captured with all adapters and no row of the base, so no graph may have one group fewer: its kernels would
run those.
"""

from __future__ import annotations

from typing import Any

FEW = (1, 4, 8)
"""Numbers of adapters with their own graphs, in addition to those for all adapters."""


def captured_counts(max_loras: int, specialize: bool) -> list[int]:
    """Return the numbers of groups (adapters and the base) for which graphs are captured."""
    few = [count + 1 for count in FEW if count + 1 < max_loras] if specialize else []
    return [*few, max_loras + 1]


def active_groups(lora_config: Any, lora_state: Any, req_ids: list[str], dummy_run: bool) -> int:
    """Return the number of groups in a step's graph; 0 if no adapter is in the step."""
    if not lora_config:
        return 0
    if dummy_run:
        return int(lora_config.max_loras) + 1
    adapters = len(lora_state.get_activate_loras(req_ids))
    return adapters + 1 if adapters else 0


def patch(users_of_counts: list[Any], runner: Any) -> None:
    """users_of_counts: modules with vLLM's `get_captured_lora_counts`. runner: module of the second model runner."""
    for module in users_of_counts:
        module.get_captured_lora_counts = captured_counts
    runner.get_num_active_loras_for_dispatch = active_groups
