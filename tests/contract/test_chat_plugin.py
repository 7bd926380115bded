"""Each patch to vLLM: the fault on a fresh copy of vLLM's own code, and that the patch removes it. No engine starts."""

import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from adapters import vllm_core, vllm_manager, vllm_plugin, vllm_punica, vllm_stage

pytestmark = pytest.mark.real
WIDTH, RANK, PLACES = 12, 4, 3
SLICES = (5, 3)


def stock(name: str) -> ModuleType:
    """A copy of a vLLM module as it was installed, whatever other tests patched."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrapper(*, patched: bool) -> Any:
    kind = stock("vllm.lora.punica_wrapper.punica_cpu").PunicaWrapperCPU
    if patched:
        vllm_punica.patch(kind)
    return kind(64, 64, "cpu")


def mapped(punica: Any, ids: list[int]) -> Any:
    """Give `punica` a batch; id 0 means no adapter, ids 1, 2, 3 lie in places 0, 1, 2."""
    from vllm.lora.layers import LoRAMapping

    punica.update_metadata(LoRAMapping(tuple(ids), tuple(ids), is_prefill=True), [1, 2, 3], PLACES + 1, 100)
    return punica


@pytest.fixture
def weights() -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    a = tuple(torch.randn(PLACES, 1, RANK, WIDTH, generator=generator) for _ in SLICES)
    b = tuple(torch.randn(PLACES, 1, width, RANK, generator=generator) for width in SLICES)
    return a, b


def expected(y: torch.Tensor, x: torch.Tensor, a: Any, b: Any, ids: list[int]) -> torch.Tensor:
    y = y.clone()
    for row, adapter in enumerate(ids):
        if adapter:
            parts = [b_[adapter - 1, 0] @ (a_[adapter - 1, 0] @ x[row]) for a_, b_ in zip(a, b, strict=True)]
            y[row] += torch.cat(parts)
    return y


MIXES = [[0, 1, 2, 0, 3, 1], [0, 0, 0], [2, 2, 2], [3], [0], [1, 0, 1, 0, 1, 0, 3]]


@pytest.mark.parametrize("ids", MIXES)
def test_rows_get_their_own_adapter(ids: list[int], weights: Any) -> None:
    x, y = torch.randn(len(ids), WIDTH), torch.randn(len(ids), sum(SLICES))
    wanted = expected(y, x, *weights, ids)
    mapped(wrapper(patched=True), ids).add_lora_linear(y, x, *weights, 1.0, SLICES)
    torch.testing.assert_close(y, wanted)


def test_stock_gives_a_row_without_adapter_the_last_place(weights: Any) -> None:
    ids = [0, 1]
    x, y = torch.randn(2, WIDTH), torch.zeros(2, sum(SLICES))
    mapped(wrapper(patched=False), ids).add_lora_linear(y, x, *weights, 1.0, SLICES)
    torch.testing.assert_close(y, expected(torch.zeros(2, sum(SLICES)), x, *weights, [3, 1]))


@pytest.mark.parametrize("ids", MIXES)
def test_shrink_and_expand_as_sharded_layers_use_them(ids: list[int], weights: Any) -> None:
    a, b = weights
    x, y = torch.randn(len(ids), WIDTH), torch.randn(len(ids), sum(SLICES))
    wanted = expected(y, x, a, b, ids)
    punica = mapped(wrapper(patched=True), ids)
    buffers = torch.zeros(len(SLICES), len(ids), RANK)
    punica.add_shrink(buffers, x, a, 1.0)
    punica.add_expand(y, buffers, b, SLICES, add_inputs=True)
    torch.testing.assert_close(y, wanted)


def test_stock_sharded_layers_and_the_head_give_it_the_last_place_too(weights: Any) -> None:
    a, b = weights
    ids, x = [0, 1], torch.randn(2, WIDTH)
    punica = mapped(wrapper(patched=False), ids)
    y, buffers = torch.zeros(2, sum(SLICES)), torch.zeros(len(SLICES), 2, RANK)
    punica.add_shrink(buffers, x, a, 1.0)
    punica.add_expand(y, buffers, b, SLICES, add_inputs=True)
    torch.testing.assert_close(y, expected(torch.zeros_like(y), x, a, b, [3, 1]))
    head = torch.zeros(2, SLICES[0])
    punica.add_lora_logits(head, x, a[0], b[0], 1.0)
    torch.testing.assert_close(head, expected(torch.zeros_like(head), x, a[:1], b[:1], [3, 1]))


def test_ranks_below_the_places_rank_are_not_multiplied_out(weights: Any) -> None:
    a, b = weights
    a[0][:, :, 2:] = float("nan")  # rows that a rank of 2 never fills
    a[1][:, :, 2:] = float("nan")
    x, y = torch.randn(2, WIDTH), torch.zeros(2, sum(SLICES))
    punica = wrapper(patched=True)
    punica.roundhouse_ranks = {0: 2, 1: 2, 2: 2}
    mapped(punica, [1, 2]).add_lora_linear(y, x, a, b, 1.0, SLICES)
    assert bool(torch.isfinite(y).all())


def test_head_and_embedding_adapters_have_no_way_in() -> None:
    from vllm.lora import model_manager

    punica = wrapper(patched=True)
    for method in (punica.add_lora_logits, punica.add_lora_embedding):
        with pytest.raises(NotImplementedError):
            method(None, None, None, None, 1.0)
    fresh = stock("vllm.lora.model_manager")
    model = torch.nn.Module()
    model.embedding_modules = {"embed_tokens": "x", "lm_head": "y"}  # type: ignore[assignment]
    assert set(fresh.get_supported_lora_modules(model)) == {"embed_tokens", "lm_head"}
    kind = type("Manager", (), {"add_adapter": None})
    before, vllm_manager._stock_supported_lora_modules = vllm_manager._stock_supported_lora_modules, None
    try:
        vllm_manager.patch(kind, fresh)
        assert fresh.get_supported_lora_modules(model) == []
    finally:
        vllm_manager._stock_supported_lora_modules = before
    assert model_manager is not fresh


class _Manager:
    """As much of vLLM's model manager as `add_adapter` looks at."""

    def __init__(self, cached: int) -> None:
        self._registered_adapters = dict.fromkeys(range(1, cached + 1))
        self._active_adapters: dict[int, None] = {1: None}
        self.lora_index_to_id: list[int | None] = [1]
        self.listed = 0

    def list_adapters(self) -> dict[int, Any]:
        self.listed += 1
        return dict(self._registered_adapters)

    def get_adapter(self, number: int) -> object:
        return self

    def activate_adapter(self, number: int) -> bool:
        return False


def test_a_step_does_not_list_all_cached_adapters() -> None:
    from vllm.lora.request import LoRARequest

    request = LoRARequest("x", 1, "/nowhere")
    fresh = stock("vllm.lora.worker_manager").LRUCacheWorkerLoRAManager
    manager = fresh.__new__(fresh)
    manager._adapter_manager = _Manager(1000)
    manager.add_adapter(request)
    assert manager._adapter_manager.listed == 1, "vLLM's own code copies the whole table for each adapter of a step"
    assert vllm_manager._add_adapter(manager, request)
    assert manager._adapter_manager.listed == 1


def test_an_adapter_is_never_loaded_from_a_path() -> None:
    from vllm.lora.request import LoRARequest

    read: list[str] = []
    fresh = stock("vllm.lora.worker_manager").LRUCacheWorkerLoRAManager
    manager = fresh.__new__(fresh)
    manager._adapter_manager = _Manager(0)
    manager._load_adapter = lambda request: read.append(request.lora_path)
    request = LoRARequest("x", 5, "/some/where")
    with pytest.raises(AttributeError):
        manager.add_adapter(request)  # goes on with the None that our reader gave
    assert read == ["/some/where"]
    with pytest.raises(vllm_manager.NotPlaced):
        vllm_manager._add_adapter(manager, request)
    assert read == ["/some/where"]


class _Core:
    def __init__(self, outcomes: dict[str, list[str]]) -> None:
        self.outcomes, self.asked = outcomes, [""]
        self.scheduler = SimpleNamespace(requests={})

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[list[str]]:
        self.asked.append(method)
        return [self.outcomes.get(method, ["done"])]

    def preprocess_add_request(self, request: Any) -> str:
        return "taken in"


def test_vllms_own_intake_takes_a_request_for_an_adapter_that_nobody_loaded() -> None:
    """Its worker then loads from the request's path within a step, and what that raises ends the engine."""
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    core = core_of(stock("vllm.v1.engine.core"))
    lora = LoRARequest("seven", 7, "/nowhere")
    request = EngineCoreRequest("r", [1, 2], None, SamplingParams(max_tokens=1), None, 0.0, lora, None, None)
    taken, _ = core.preprocess_add_request(request)
    assert taken.lora_request.lora_path == "/nowhere"
    fresh = stock("vllm.v1.engine.core")
    vllm_core.patch(fresh.EngineCore, lambda: None)
    core = core_of(fresh)
    with pytest.raises(vllm_core.UnknownAdapter, match="seven"):
        core.preprocess_add_request(request)
    vllm_core._placed(core).add(7)
    assert core.preprocess_add_request(request)[0].lora_request is lora


def core_of(module: ModuleType) -> Any:
    """An EngineCore without model and scheduler: as much as its intake needs."""
    core = module.EngineCore.__new__(module.EngineCore)
    core.mm_receiver_cache = core.request_block_hasher = None
    return core


@pytest.mark.parametrize("memory", [False, True])
def test_the_reason_of_a_failed_start_reaches_the_slot(
    memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own EngineCore raises in its process and leaves nothing; the parent hears 'initialization failed'."""
    cause, fault = tmp_path / "cause", MemoryError("no room") if memory else ValueError("bad flag")
    monkeypatch.setenv(vllm_core.CAUSE, str(cause))

    def fail(*args: Any, **kwargs: Any) -> None:
        raise fault

    fresh = stock("vllm.v1.engine.core")
    monkeypatch.setattr("vllm.plugins.load_general_plugins", fail)
    with pytest.raises(type(fault)):
        fresh.EngineCore(None, None, False)
    assert not cause.exists()
    begun: list[int] = []
    vllm_core.patch(fresh.EngineCore, lambda: begun.append(1))
    with pytest.raises(type(fault)):
        fresh.EngineCore(None, None, False)
    assert json.loads(cause.read_text()) == [int(memory), f"{type(fault).__name__}: {fault}"]
    assert begun == [1]


def test_a_request_for_an_adapter_that_is_not_placed_is_refused_at_the_intake() -> None:
    request = SimpleNamespace(lora_request=SimpleNamespace(lora_int_id=7, lora_name="seven"))
    assert _Core({}).preprocess_add_request(request) == "taken in", "vLLM's own intake lets it through"
    kind = type("Core", (_Core,), {})
    begun: list[int] = []
    vllm_core.patch(kind, lambda: begun.append(1))
    core = kind({"place_adapter": ["running"], "poll_adapter": ["done", "placed"]})
    assert begun == [1]
    assert core.preprocess_add_request(SimpleNamespace(lora_request=None)) == "taken in"
    with pytest.raises(vllm_core.UnknownAdapter):
        core.preprocess_add_request(request)
    assert core.place_adapter(7, 0) == ["running"]
    with pytest.raises(vllm_core.UnknownAdapter):
        core.preprocess_add_request(request)
    core.poll_adapter(7)
    assert core.preprocess_add_request(request) == "taken in"
    core.scheduler.requests["r"] = request
    assert core.drop_adapter(7) == ["busy"]
    assert core.place_adapter(8, 7) == ["busy"]
    assert core.asked[-1] == "poll_adapter", "a refused call changes nothing"
    core.scheduler.requests.clear()
    core.drop_adapter(7)
    with pytest.raises(vllm_core.UnknownAdapter):
        core.preprocess_add_request(request)


def test_ranks_of_logprobs_are_counted_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.callback import callback_handler
    from torch._dynamo.exc import InternalTorchDynamoError
    from vllm.v1.sample import sampler
    from vllm.v1.sample.ops import logprobs

    def begin(_: object) -> None:
        raise RuntimeError("the compiler starts")  # instead of the 8 to 15 s that it takes

    fresh = stock("vllm.v1.sample.ops.logprobs").batched_count_greater_than
    monkeypatch.setattr(logprobs, "batched_count_greater_than", fresh)
    monkeypatch.setattr(sampler, "batched_count_greater_than", fresh)
    callback_handler.register_start_callback(begin)
    try:
        with pytest.raises(InternalTorchDynamoError, match="the compiler starts"):
            sampler.batched_count_greater_than(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2.0]]))
        vllm_plugin._compile_nothing()
        for count in (sampler.batched_count_greater_than, logprobs.batched_count_greater_than):
            assert count(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2.0]])).tolist() == [2]
    finally:
        callback_handler.remove_start_callback(begin)


def test_compute_threads_are_bound_before_vllm_makes_that_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    before, set_threads = torch.get_num_threads(), torch.set_num_threads
    monkeypatch.setenv(vllm_plugin.THREADS, "1")
    try:
        torch.set_num_threads(3)
        monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # as vLLM's CPU worker does
        vllm_plugin._bound_threads()
        assert torch.get_num_threads() == 3, "too late: a place in vLLM's own start-up is needed"
        monkeypatch.setattr(torch, "set_num_threads", set_threads)
        vllm_plugin._bound_threads()
        assert torch.get_num_threads() == 1
    finally:
        set_threads(before)


def _layer(places: int = 2, rank: int = 4, width_in: int = 6, width_out: int = 8) -> Any:
    return SimpleNamespace(
        lora_a_stacked=(torch.zeros(places, 1, rank, width_in),),
        lora_b_stacked=(torch.zeros(places, 1, width_out, rank),),
    )


def _pair(a: torch.Tensor | None, b: torch.Tensor | None) -> Any:
    return SimpleNamespace(lora_a=a, lora_b=b)


@pytest.mark.parametrize(
    ("pair", "word"),
    [
        (_pair(torch.ones(4, 6), torch.ones(8, 4)), None),
        (_pair(torch.ones(2, 6), torch.ones(8, 2)), None),
        (_pair(torch.ones(4, 5), torch.ones(8, 4)), "made for"),
        (_pair(torch.ones(4, 6), torch.ones(9, 4)), "made for"),
        (_pair(torch.ones(4, 6), torch.ones(8, 3)), "rank"),
        (_pair(torch.ones(5, 6), torch.ones(8, 5)), "rank"),
        (_pair(torch.ones(4, 6), None), "missing"),
        (_pair(torch.full((4, 6), float("nan")), torch.ones(8, 4)), "finite"),
        (_pair(torch.ones(4, 6), torch.full((8, 4), float("inf"))), "finite"),
        (_pair([torch.ones(4, 6)] * 2, [torch.ones(8, 4)] * 2), "parts"),
    ],
)
def test_staged_weights_must_fit_the_layers(pair: Any, word: str | None) -> None:
    faults = vllm_stage.faults_of({"layer": pair}, {"layer": _layer()}, 4)
    assert bool(faults) == (word is not None)
    assert not word or word in faults[0]


def test_no_layer_or_no_weights_are_faults() -> None:
    assert vllm_stage.faults_of({}, {}, 4)
    assert vllm_stage.faults_of({"other": _pair(torch.ones(4, 6), torch.ones(8, 4))}, {"layer": _layer()}, 4)


def test_a_plain_vllm_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[str] = []
    monkeypatch.setattr(vllm_plugin, "_patch_all", lambda: applied.append("all"))
    monkeypatch.delenv(vllm_plugin.ACTIVE, raising=False)
    vllm_plugin.register()
    assert not applied
    monkeypatch.setenv(vllm_plugin.ACTIVE, "1")
    vllm_plugin.register()
    assert applied == ["all"]


def test_an_unchecked_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setenv(vllm_plugin.ACTIVE, "1")
    monkeypatch.setattr(vllm_plugin, "_patch_all", lambda: pytest.fail("patched"))
    monkeypatch.setattr(vllm, "__version__", "0.99.1")
    with pytest.raises(RuntimeError, match=r"0\.99\.1"):
        vllm_plugin.register()


ORPHANS = """
import multiprocessing, sys, time
from adapters import vllm_plugin
def child(watch):
    if watch:
        vllm_plugin._watch_parent()
    time.sleep(60)
for watch in (False, True):
    process = multiprocessing.get_context("fork").Process(target=child, args=(watch,), name="EngineCore")
    process.start()
    print(process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fork and /proc")
def test_the_engine_process_ends_with_its_slot() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    stock_child, child = (psutil.Process(int(parent.stdout.readline())) for _ in range(2))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    try:
        deadline = time.monotonic() + 20
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        assert stock_child.is_running(), "without the watch it lives on"
        assert stock_child.status() != psutil.STATUS_ZOMBIE
    finally:
        stock_child.kill()
    assert multiprocessing.active_children() == []
