"""Graphs for few adapters: a step's graph has room for all its adapters, also if it has rows of the base."""

from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.chat import settings
from models.chat.vllm import launch
from models.chat.vllm.adapters import active_counts, metadata
from registry.errors import Unfit
from tests.contract.vllm.stock import SimpleLoRARequest, stock
from tests.unit.registry.makers import recipe

pytestmark = pytest.mark.real


def lora_state(adapters: list[int]) -> Any:
    """Return vLLM's state with one request for each adapter. 0 means the base."""
    state = import_module("vllm.v1.worker.gpu.lora_utils").LoraState(len(adapters))
    for number, adapter in enumerate(adapters):
        state.add_request(str(number), number, SimpleLoRARequest(adapter) if adapter else None)
    return state


def graph_of(counts: list[int], groups: int) -> int:
    """Return the number of groups in the graph that vLLM's own table chooses."""
    cudagraph_utils = import_module("vllm.v1.worker.gpu.cudagraph_utils")
    manager = SimpleNamespace(lora_capture_cases=[0, *counts])
    table, most = cudagraph_utils.CudaGraphManager._build_lora_dispatch_map(manager)
    manager = SimpleNamespace(_lora_dispatch_map=table, _max_lora_case=most)
    return int(cudagraph_utils.CudaGraphManager._resolve_effective_loras(manager, groups))


@given(places=st.integers(1, 40), adapters=st.lists(st.integers(0, 39), min_size=1, max_size=60))
def test_a_graph_has_room_for_all_groups_of_its_step(places: int, adapters: list[int]) -> None:
    config = SimpleNamespace(max_loras=places)
    ids = [adapter % (places + 1) for adapter in adapters]
    groups = metadata.group(metadata.places_of(ids, list(range(1, places + 1))))
    needed = 0 if groups is None else len(groups.places)
    state, names = lora_state(ids), [str(number) for number in range(len(ids))]
    counts = active_counts.captured_counts(places, True)
    chosen = graph_of(counts, active_counts.active_groups(config, state, names, False))
    assert needed <= chosen
    assert (chosen == 0) is (needed == 0)
    assert active_counts.active_groups(config, state, names, True) == places + 1
    assert active_counts.active_groups(None, state, names, False) == 0


def captured_groups(places: int, counts: list[int], case: int, requests: int) -> int:
    """Return the number of groups that the kernels run in a case's graph, from the dummy batch of its capture."""
    found: list[int] = []
    mixin = import_module("vllm.v1.worker.lora_model_runner_mixin").LoRAModelRunnerMixin
    runner = SimpleNamespace(lora_manager=object(), _set_active_loras=lambda _, tokens, *rest: found.extend(tokens))
    hook = import_module("vllm.v1.worker.gpu.lora_utils").create_lora_capture_hook
    runner.maybe_select_dummy_loras = partial(mixin.maybe_select_dummy_loras, runner)
    hook(SimpleNamespace(max_loras=places), runner)(case, requests, requests)
    groups = metadata.group(metadata.places_of(found, list(range(1, places + 1))))
    assert groups is not None
    return metadata._captured(counts, len(groups.places))


@pytest.mark.parametrize("places", range(1, 41))
def test_the_kernels_of_a_graph_run_as_many_groups_as_it_was_chosen_for(places: int) -> None:
    """vLLM captures the largest case without rows of the base, so a case for one group fewer would replace it."""
    counts = active_counts.captured_counts(places, True)
    for case in counts:
        for requests in range(1, places + 3):
            assert captured_groups(places, counts, case, requests) >= min(case, requests)


def test_vllms_own_choice_leaves_out_the_last_adapter_in_steps_with_the_base() -> None:
    """The reason for the patch. If this fails, vLLM has fixed it."""
    theirs = stock("vllm.v1.worker.gpu.lora_utils")
    counts = stock("vllm.lora.utils").get_captured_lora_counts(8, True)
    ids, config = [0, 7], SimpleNamespace(max_loras=8)
    chosen = graph_of(counts, theirs.get_num_active_loras_for_dispatch(config, lora_state(ids), ["0", "1"], False))
    groups = metadata.group(metadata.places_of(ids, [7]))
    assert groups is not None
    assert (groups.places.tolist(), chosen) == ([-1, 0], 1)


@pytest.mark.parametrize(
    ("places", "specialize", "counts"),
    [
        (24, True, [2, 5, 9, 25]),
        (24, False, [25]),
        (4, True, [2, 5]),
        (1, True, [2]),
        (8, True, [2, 5, 9]),
        (2, True, [3]),
        (5, True, [2, 6]),
        (9, True, [2, 5, 10]),
    ],
)
def test_graphs_are_captured_for_few_numbers(places: int, specialize: bool, counts: list[int]) -> None:
    assert active_counts.captured_counts(places, specialize) == counts


@pytest.mark.parametrize("second_runner", [True, False])
def test_a_recipe_switches_it_on_but_not_with_vllms_first_runner(
    second_runner: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patch is for the second runner. With the first one, answers would be wrong."""
    engine = {"name": "vllm", "flags": {"specialize_active_lora": True}}
    given = recipe("m", engine=engine, memory={"kv_cache": "1GiB"}, dtype="bfloat16")
    arguments = settings.arguments(given, Path("/weights"), "cuda:0", launch.parser())
    assert arguments.specialize_active_lora
    config = SimpleNamespace(use_v2_model_runner=second_runner)
    made = SimpleNamespace(create_engine_config=lambda _: config)
    monkeypatch.setattr("vllm.engine.arg_utils.AsyncEngineArgs.from_cli_args", lambda _: made)
    if second_runner:
        assert launch.configuration(arguments, "cuda:0") is config
    else:
        with pytest.raises(Unfit, match="specialize_active_lora gives wrong answers") as refused:
            launch.configuration(arguments, "cuda:0")
        assert refused.value.param == "engine.flags"
