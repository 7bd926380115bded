"""Adapters in an arena of blocks: tensors equal the files', and no block is used twice at the same time.

There is no CUDA, so nothing is pinned and events are scripted.
"""

import gc
import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import estimate
from models.chat.vllm import variables
from models.chat.vllm.adapters import gpu_copy, read, stage
from models.chat.vllm.adapters.arena import PAGE, Arena
from models.chat.vllm.adapters.read import read_adapter, tensors
from tests.contract.vllm import manager_fixtures as fixtures
from tests.contract.vllm.adapters.test_templates import DTYPES, RANKS, assert_alike, stored

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patched_loader")]
RANK = 16
ALL = dict.fromkeys(fixtures.names(), 8)


class Event:
    """A copy that ends when a test says so."""

    def __init__(self) -> None:
        self.records, self.done = 0, True

    def record(self) -> None:
        self.records, self.done = self.records + 1, False

    def query(self) -> bool:
        return self.done


class Pins:
    """An arena without pinning. It records what would be pinned, and its events."""

    def __init__(self, count: int = 4, size: int = 64 << 10, most: int = 100) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.events: list[Event] = []
        self.most = most
        self.arena = Arena(count, size, self._pin, self._event)

    def _pin(self, address: int, count: int) -> None:
        if len(self.ranges) >= self.most:
            raise RuntimeError("CUDA error: out of memory")
        self.ranges.append((address, count))

    def _event(self) -> Event:
        self.events.append(Event())
        return self.events[-1]


def in_arena(pins: Pins, tensor: torch.Tensor) -> bool:
    return any(start <= tensor.data_ptr() < start + count for start, count in pins.ranges)


# --- blocks --------------------------------------------------------------------------------------------------------
def test_blocks_begin_at_large_pages_and_the_next_one_is_pinned_ahead() -> None:
    pins = Pins(size=PAGE + 1)
    first = pins.arena.take(10)
    pins.arena.make_spare()
    pins.arena.make_spare()
    assert first is not None
    assert (first.shape, first.dtype, pins.arena.made) == ((10,), torch.uint8, 2)
    assert [start % PAGE for start, _ in pins.ranges] == [0, 0]
    assert [count for _, count in pins.ranges] == [2 * PAGE] * 2
    assert pins.ranges[1][0] - pins.ranges[0][0] == 2 * PAGE


def test_a_kernel_without_large_pages_has_blocks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in some virtual machines; Linux then refuses the advice."""
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345)
    with pytest.raises(OSError, match="Invalid argument"):
        mmap.mmap(-1, PAGE).madvise(12345)
    assert Pins().arena.take(10) is not None


def test_a_block_is_free_once_no_tensor_of_it_is_left() -> None:
    pins = Pins(count=1)
    data = pins.arena.take(64)
    assert data is not None
    view = data.view(torch.bfloat16)[4:8].view(2, 2)
    del data
    assert pins.arena.take(1) is None, "a view of it is alive"
    storage = view.untyped_storage()
    del view
    assert pins.arena.take(1) is None, "its storage is alive"
    del storage
    assert pins.arena.take(1) is not None


def test_a_block_is_not_reused_before_the_copy_out_of_it_has_ended() -> None:
    pins = Pins(count=2)
    first, second = pins.arena.take(64), pins.arena.take(64)
    assert first is not None
    assert second is not None
    where = [first.data_ptr(), second.data_ptr()]
    pins.arena.copied(first)
    del first, second
    again = pins.arena.take(64)
    assert again is not None
    assert again.data_ptr() == where[1]
    assert pins.arena.take(64) is None
    pins.events[0].done = True
    other = pins.arena.take(64)
    assert other is not None
    assert other.data_ptr() == where[0]


def test_tensors_that_are_too_large_or_cannot_be_pinned_are_left_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "roundhouse.chat")
    pins = Pins(count=5, most=1)
    assert pins.arena.take(PAGE + 1) is None
    held = pins.arena.take(PAGE)
    assert held is not None
    for _ in range(3):
        assert pins.arena.take(1) is None
    assert len(caplog.records) == 1, "pinning is tried only once"
    pins.arena.copied(torch.zeros(4, dtype=torch.uint8))
    assert pins.events == [], "torch's own memory"


@settings(max_examples=60)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["take", "drop", "copy", "end", "spare"]), st.integers(0, 9)), max_size=60)
)
def test_no_two_tensors_ever_share_a_block(steps: list[tuple[str, int]]) -> None:
    """In any order of allocations, copies, their ends, and drops."""
    pins, held = Pins(count=3), []
    copying: dict[int, Event] = {}
    for what, number in steps:
        if what == "take" and (data := pins.arena.take(64)) is not None:
            at = data.data_ptr()
            assert at not in {one.data_ptr() for one in held}
            assert at not in copying or copying[at].done
            held.append(data)
        elif what == "drop" and held:
            held.pop(number % len(held))
        elif what == "copy" and held:
            data = held[number % len(held)]
            pins.arena.copied(data)
            copying[data.data_ptr()] = next(event for event in pins.events if event is pins.arena._events[
                (data.data_ptr() - pins.ranges[0][0]) // pins.arena.size
            ])  # fmt: skip
        elif what == "end" and pins.events:
            pins.events[number % len(pins.events)].done = True
        elif what == "spare":
            pins.arena.make_spare()
    assert pins.arena.made <= 3


# --- adapters ------------------------------------------------------------------------------------------------------
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(ranks=RANKS, dtype=st.sampled_from(DTYPES), place_dtype=st.sampled_from(DTYPES))
def test_adapters_in_the_arena_equal_those_in_memory_of_their_own(
    tmp_path: Path, ranks: dict[str, int], dtype: torch.dtype, place_dtype: torch.dtype
) -> None:
    """Bit for bit, read by vLLM's loader, by a template, and with a cast."""
    ours, theirs = (fixtures.worker_manager(RANK, place_dtype) for _ in range(2))
    pins = Pins(count=4)
    for number in range(1, 4):
        path = stored(tmp_path / str(number), ranks, number, dtype)
        with read.for_gpu(place_dtype, pins.arena):
            found = read_adapter(ours, number, str(path))
        expected = read_adapter(theirs, number, str(path))
        if dtype is place_dtype:
            assert_alike(found, expected)
        else:
            theirs.__dict__.pop("roundhouse_templates", None)
        assert all(
            in_arena(pins, half) for weights in found.loras.values() for pair in tensors(weights)
            for half in pair if half is not None
        )  # fmt: skip
        del found
    gc.collect()
    assert pins.arena.made <= 3, "blocks are reused"


def test_a_place_is_filled_from_the_arena_and_its_copy_has_an_event(tmp_path: Path) -> None:
    ours, theirs = fixtures.worker_manager(RANK), fixtures.worker_manager(RANK)
    pins, copier = Pins(), gpu_copy.GpuCopier(ours._adapter_manager)
    copier.arena = pins.arena
    path = fixtures.write_adapter(tmp_path, ALL, 1, torch.bfloat16)
    with read.for_gpu(torch.bfloat16, pins.arena):
        lora = read_adapter(ours, 1, str(path))
    sources = copier.sources_of(lora)
    assert sources is not None
    copier.write(sources, 1)
    stage.write_place(theirs._adapter_manager, read_adapter(theirs, 1, str(path)), 1)
    for name, module in ours._adapter_manager.modules.items():
        other = theirs._adapter_manager.modules[name]
        for halves in ("lora_a_stacked", "lora_b_stacked"):
            pairs = zip(getattr(module, halves), getattr(other, halves), strict=True)
            assert all(torch.equal(a[1], b[1]) for a, b in pairs)
    assert [event.records for event in pins.events] == [1]
    block = sources.data.data_ptr()
    del lora, sources
    pins.arena.make_spare()
    taken = [pins.arena.take(1) for _ in range(3)]
    assert block not in {one.data_ptr() for one in taken if one is not None}
    pins.events[0].done = True
    last = pins.arena.take(1)
    assert last is not None
    assert last.data_ptr() == block


def test_a_copy_by_vllms_layers_has_an_event_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an adapter that is not in one piece, because vLLM has scaled its B halves into other memory."""
    monkeypatch.setattr(stage, "read_adapter", _in_two_pieces)
    pins = Pins()
    worker = Worker(pins)
    worker.place(1, stored(tmp_path / "1", ALL, 1))
    assert [event.records for event in pins.events] == [1]
    assert worker.manager.get_adapter(1).roundhouse_sources is None
    worker.state.close()


def _in_two_pieces(worker_manager: Any, adapter_id: int, path: str, arena: Arena) -> Any:
    lora = _as_on_gpu(worker_manager, adapter_id, path, arena)
    for weights in lora.loras.values():
        several = isinstance(weights.lora_b, list)
        weights.lora_b = [b.clone() for b in weights.lora_b] if several else weights.lora_b.clone()
    del lora.roundhouse_template
    return lora


class Worker(stage.StagedAdapters):
    """The worker of an engine whose host has an arena, but whose device is a CPU."""

    def __init__(self, pins: Pins) -> None:
        self.worker_manager = fixtures.worker_manager(RANK)
        self.manager = self.worker_manager._adapter_manager
        state = stage._State(self.manager)
        state.gpu_copier = gpu_copy.GpuCopier(self.manager)
        state.use_arena(pins.arena)
        self.state = self.__dict__["_roundhouse_swaps"] = state

    def _lora_managers(self) -> tuple[Any, Any]:
        return self.worker_manager, self.manager

    def place(self, number: int, path: Path, evict: int = 0) -> None:
        assert self.stage_adapter(number, str(path))[0] == "running"
        self.state.staging[number].result()
        assert self.place_adapter(number, evict) == ["done"]


def test_each_staged_adapter_uses_a_block_and_the_next_block_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With twice as many adapters as fit into host memory, one after another."""
    monkeypatch.setattr(stage, "read_adapter", _as_on_gpu)
    pins = Pins(count=fixtures.HOST + stage.BEING_READ)
    worker = Worker(pins)
    for number in range(1, 2 * fixtures.HOST + 1):
        leaving = number - fixtures.PLACES
        if leaving > 0:
            assert worker.drop_adapter(leaving) == ["done"]
            for event in pins.events:
                event.done = True
        worker.place(number, stored(tmp_path / str(number), ALL, number))
        worker.state.threads.submit(int).result()  # waits until the spare block is made
        assert pins.arena._free
    assert len(pins.ranges) <= fixtures.PLACES + stage.BEING_READ
    worker.state.close()


def _as_on_gpu(worker_manager: Any, adapter_id: int, path: str, arena: Arena) -> Any:
    with read.for_gpu(torch.bfloat16, arena):
        return read_adapter(worker_manager, adapter_id, path)


def test_the_estimate_counts_blocks_as_the_arena_does() -> None:
    assert (estimate.ARENA_PAGE, estimate.ARENA_SPARE) == (PAGE, stage.BEING_READ)


def test_there_is_no_arena_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.ARENA, "1")
    state = stage._State(fixtures.worker_manager(RANK)._adapter_manager)
    assert state.arena is None
    state.close()
