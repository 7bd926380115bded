"""Batches by turns within a budget: no item is lost, no request starves; and the threads that run them."""

import asyncio
import math
import random
import threading
import weakref
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.batching.plan import PADDED, SMALL, Item, RequestRing
from models.batching.worker import Answers, Batcher, BatchLimits, _Speed
from registry.errors import BadRequest, EngineFailed, QueueFull
from tests.eventually import eventually

REQUESTS = st.lists(st.lists(st.integers(1, 600), min_size=1, max_size=12), min_size=1, max_size=8)


def filled(requests: Sequence[Sequence[int]], padded: bool = True) -> RequestRing[str]:
    turns: RequestRing[str] = RequestRing(padded)
    for key, sizes in enumerate(requests):
        turns.add(key, [Item(index, size, f"{key}.{index}") for index, size in enumerate(sizes)])
    return turns


@given(REQUESTS, st.integers(1, 2000), st.integers(1, 16))
def test_every_item_runs_once_within_the_budget(requests: list[list[int]], tokens: int, items: int) -> None:
    turns = filled(requests)
    seen: list[str] = []
    while batch := turns.take(tokens, items):
        sizes = [picked.item.tokens for picked in batch]
        padded = max(sizes) * len(sizes)
        assert len(batch) <= items
        assert len(batch) == 1 or padded <= tokens
        assert len(batch) == 1 or padded <= SMALL or padded <= PADDED * sum(sizes)
        assert sizes == sorted(sizes, reverse=True)
        seen += [picked.item.payload for picked in batch]
    assert sorted(seen) == sorted(f"{k}.{i}" for k, sizes in enumerate(requests) for i in range(len(sizes)))
    assert not len(turns)


@given(REQUESTS, st.integers(1, 2000), st.integers(1, 16))
def test_without_padding_the_budget_counts_real_tokens_and_lengths_mix(
    requests: list[list[int]], tokens: int, items: int
) -> None:
    turns = filled(requests, padded=False)
    seen: list[str] = []
    while batch := turns.take(tokens, items):
        sizes = [picked.item.tokens for picked in batch]
        assert len(batch) <= items
        assert len(batch) == 1 or sum(sizes) <= tokens
        seen += [picked.item.payload for picked in batch]
    assert sorted(seen) == sorted(f"{k}.{i}" for k, sizes in enumerate(requests) for i in range(len(sizes)))
    mixed = filled([[600], [1], [5, 5]], padded=False)
    assert [picked.item.tokens for picked in mixed.take(611, 8)] == [600, 5, 5, 1]


@given(REQUESTS, st.integers(1, 2000), st.integers(1, 16), st.booleans())
def test_a_request_gets_an_item_within_as_many_batches_as_there_are_requests(
    requests: list[list[int]], tokens: int, items: int, padded: bool
) -> None:
    turns = filled(requests, padded)
    left = {key: len(sizes) for key, sizes in enumerate(requests)}
    waited = dict.fromkeys(left, 0)
    while batch := turns.take(tokens, items):
        served = {picked.key for picked in batch}
        for key in [key for key, count in left.items() if count]:
            waited[key] = 0 if key in served else waited[key] + 1
            assert waited[key] < len(requests)
        for picked in batch:
            left[picked.key] -= 1


@given(REQUESTS, st.integers(0, 7))
def test_a_dropped_request_leaves_nothing_behind(requests: list[list[int]], key: int) -> None:
    turns = filled(requests)
    known = key < len(requests)
    assert turns.drop(key) == (len(requests[key]) if known else 0)
    while batch := turns.take(500, 8):
        assert all(picked.key != key for picked in batch)


def test_a_ring_counts_what_waits_and_takes_the_longest_items_of_a_request_first() -> None:
    turns = filled([[1, 600, 30], [7]])
    assert (len(turns), turns.items, turns.tokens) == (2, 4, 638)
    assert [picked.item.tokens for picked in turns.take(600, 1)] == [600]
    assert (len(turns), turns.items, turns.tokens) == (2, 3, 38)
    with pytest.raises(KeyError):
        turns.add(1, [Item(0, 5, "again")])
    turns.drop(0)
    assert (len(turns), turns.items, turns.tokens) == (1, 1, 7)


def test_items_join_up_to_the_stated_part_of_padding() -> None:
    for sizes, count in (((600, 200), 2), ((600, 199), 1), ((256, 1), 2), ((257, 1), 1)):
        assert len(filled([[size] for size in sizes]).take(8192, 8)) == count, sizes


def test_a_step_is_as_long_as_its_time_allows_by_the_speed_of_full_steps() -> None:
    limits = BatchLimits(tokens=8192, items=8, waiting=8, step_seconds=0.125, least=256)
    speed = _Speed()
    assert speed.budget(limits) == 512, "it begins small"
    speed.learn(255, 1.0, limits)
    assert speed.value == 0.0, "a short step is mostly fixed cost"
    speed.learn(256, 0.0625, limits)
    assert speed.budget(limits) == 512  # 4,096 tokens a second
    speed.learn(1024, 0.0625, limits)
    assert speed.budget(limits) == 819  # a fifth of the way to 16,384
    assert _Speed(8.0).budget(limits) == 256
    assert _Speed(1e9).budget(limits) == 8192
    small = BatchLimits(tokens=100, items=8, waiting=8, step_seconds=0.125, least=256)
    assert _Speed().budget(small) == _Speed(8.0).budget(small) == 100


class Gate:
    """A network that waits until it may run, and records its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, payloads: Sequence[int]) -> list[int]:
        self.batches.append(list(payloads))
        self.entered.release()
        assert self.open.wait(200)
        if -1 in payloads:
            raise ValueError("minus one")
        if -2 in payloads:
            raise BadRequest("minus two")
        return [payload * 10 for payload in payloads]


def items(*payloads: int) -> list[Item[int]]:
    return [Item(index, 10, payload) for index, payload in enumerate(payloads)]


async def started(batcher: Batcher[int, int], gate: Gate, *payloads: int) -> "asyncio.Task[object]":
    task: asyncio.Task[object] = asyncio.create_task(batcher.submit(items(*payloads)))  # type: ignore[arg-type]
    await asyncio.to_thread(gate.entered.acquire)
    return task


def batcher_of(gate: Gate, tokens: int = 20, waiting: int = 8) -> Batcher[int, int]:
    batcher = Batcher("test", gate, BatchLimits(tokens=tokens, items=8, waiting=waiting))
    batcher.start()
    return batcher


async def test_a_small_request_overtakes_a_huge_one() -> None:
    gate = Gate()
    batcher = batcher_of(gate)
    huge = await started(batcher, gate, *range(100))
    small = asyncio.create_task(batcher.submit(items(500)))
    await asyncio.sleep(0)
    gate.open.set()
    assert (await small).results == [5000]
    assert (await huge).results == [number * 10 for number in range(100)]  # type: ignore[attr-defined]
    assert 500 in gate.batches[1] or 500 in gate.batches[2]
    batcher.close()


async def test_steps_may_have_no_limit_of_time() -> None:
    """`step_seconds: .inf` in a recipe."""
    limits = BatchLimits(tokens=8192, items=8, waiting=8, step_seconds=math.inf, least=1)
    batcher = Batcher("endless", lambda payloads: [0] * len(payloads), limits)
    batcher.start()
    for _ in range(2):  # the speed is known after the first
        async with asyncio.timeout(60):
            await batcher.submit([Item(0, 1, 0)])
    batcher.close()


async def test_a_cancelled_request_is_not_run_further() -> None:
    gate = Gate()
    batcher = batcher_of(gate)
    huge = await started(batcher, gate, *range(100))
    huge.cancel()
    with pytest.raises(asyncio.CancelledError):
        await huge
    gate.open.set()
    assert (await batcher.submit(items(7, 8))).results == [70, 80]
    assert sorted(number for batch in gate.batches for number in batch if number < 100 and number not in (7, 8)) == [
        0,
        1,
    ]
    batcher.close()


async def test_an_error_fails_its_batch_only_and_waiting_is_bounded() -> None:
    gate = Gate()
    batcher = batcher_of(gate, tokens=10, waiting=3)
    first = await started(batcher, gate, 1)
    broken = asyncio.create_task(batcher.submit(items(-1, 5)))
    refused = asyncio.create_task(batcher.submit(items(-2)))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await batcher.submit(items(2))
    gate.open.set()
    assert (await first).results == [10]  # type: ignore[attr-defined]
    with pytest.raises(EngineFailed, match="ValueError"):
        await broken
    with pytest.raises(BadRequest, match="minus two"):
        await refused
    await batcher.ping()
    assert (await batcher.submit(items(2))).results == [20]
    batcher.close()


async def test_an_item_that_the_library_fails_at_fails_alone() -> None:
    """A T5 reranker raises if a text of its step contains the end token, which must not fail other clients' texts."""
    gate = Gate()
    batcher = batcher_of(gate, tokens=100)
    first = await started(batcher, gate, 1)
    broken = asyncio.create_task(batcher.submit(items(-1)))
    others = [asyncio.create_task(batcher.submit(items(number, number + 1))) for number in (5, 7)]
    await asyncio.sleep(0)
    gate.open.set()
    with pytest.raises(EngineFailed, match="ValueError"):
        await broken
    assert [(await other).results for other in others] == [[50, 60], [70, 80]]
    assert [-1, 5, 6, 7, 8] in map(sorted, gate.batches)
    await first
    batcher.close()


class Card:
    """A network on a device that may be short of memory or lost. Once lost, every use of it fails."""

    def __init__(self) -> None:
        self.lost = False
        self.examined = 0

    def run(self, payloads: Sequence[int]) -> list[int]:
        if -3 in payloads:
            raise BadRequest("minus three")
        if -2 in payloads:
            raise ValueError("out of memory")
        self.lost = self.lost or -1 in payloads
        if self.lost:
            raise ValueError("illegal access")
        return list(payloads)

    def examine(self) -> None:
        self.examined += 1
        if self.lost:
            raise RuntimeError("the context is lost")


async def test_a_lost_device_is_noticed_and_one_that_was_short_of_memory_goes_on() -> None:
    card = Card()
    batcher = Batcher("card", card.run, BatchLimits(tokens=10, items=8, waiting=8), examine=card.examine)
    batcher.start()
    with pytest.raises(BadRequest):
        await batcher.submit(items(-3))
    assert card.examined == 0, "a refusal says nothing about the device"
    with pytest.raises(EngineFailed, match="out of memory"):
        await batcher.submit(items(-2))
    assert card.examined == 1
    await batcher.ping()
    assert (await batcher.submit(items(2))).results == [2]

    lost, waiting = await asyncio.gather(
        batcher.submit(items(-1)), batcher.submit(items(3)), return_exceptions=True
    )  # fmt: skip
    assert isinstance(lost, EngineFailed)
    assert isinstance(waiting, EngineFailed)
    for ask in (batcher.ping, lambda: batcher.submit(items(2))):
        with pytest.raises(EngineFailed, match="card is broken: RuntimeError: the context is lost"):
            await ask()
    batcher.close()
    assert not any(thread.is_alive() for thread in batcher._threads)


async def test_a_stream_returns_results_as_they_come_and_close_fails_waiting_items() -> None:
    gate = Gate()
    batcher = batcher_of(gate)
    with pytest.raises(EngineFailed):
        await Batcher("new", gate, BatchLimits(tokens=1, items=1, waiting=1)).submit(items(1))
    gate.open.set()
    found = [pair async for pair in batcher.stream(items(1, 2, 3, 4, 5))]
    assert found == [(index, (index + 1) * 10) for index in range(5)]
    gate.open.clear()
    gate.entered = threading.Semaphore(0)
    running = await started(batcher, gate, *range(9))
    closing = asyncio.create_task(asyncio.to_thread(batcher.close))
    with pytest.raises(EngineFailed, match="unloaded"):
        await running
    gate.open.set()
    await closing
    with pytest.raises(EngineFailed):
        await batcher.ping()


async def test_a_closed_stream_drops_what_has_not_started() -> None:
    ran: list[int] = []
    opened = threading.Event()

    def network(payloads: Sequence[int]) -> list[int]:
        ran.extend(payloads)
        assert payloads == [0] or opened.wait(200)
        return list(payloads)

    batcher = Batcher("stream", network, BatchLimits(tokens=10, items=8, waiting=8))
    batcher.start()
    stream = batcher.stream(items(*range(9)))
    assert await anext(stream) == (0, 0)
    await stream.aclose()
    await asyncio.sleep(0)  # its task is cancelled
    opened.set()
    await batcher.ping()
    assert ran in ([0], [0, 1])
    batcher.close()


def two_workers(gate: Gate) -> Batcher[int, int]:
    batcher = Batcher("two", gate, BatchLimits(tokens=4096, items=64, waiting=8, workers=2))
    batcher.start()
    return batcher


def long_items(size: int, *payloads: int) -> list[Item[int]]:
    return [Item(index, size, payload) for index, payload in enumerate(payloads)]


async def test_idle_threads_share_the_waiting_items() -> None:
    gate = Gate()
    batcher = two_workers(gate)
    task = asyncio.create_task(batcher.submit(long_items(50, *range(16))))
    for _ in range(2):  # both run a step with a part of the request
        await asyncio.to_thread(gate.entered.acquire)
    assert all(len(batch) < 16 for batch in gate.batches)
    gate.open.set()
    assert (await task).results == [number * 10 for number in range(16)]
    batcher.close()


async def test_a_step_counts_as_alone_only_if_no_items_are_left_for_another_thread() -> None:
    gate = Gate()
    reported: list[tuple[int, bool]] = []
    limits = BatchLimits(tokens=4096, items=64, waiting=8, workers=2, padded=False, share=64)
    batcher = Batcher("two", gate, limits, lambda tokens, alone: reported.append((tokens, alone)))
    batcher.start()
    gate.open.set()
    await batcher.submit(long_items(400, 1))
    assert reported == [(400, True)]
    gate.open.clear()
    while gate.entered.acquire(blocking=False):
        pass
    both = asyncio.create_task(batcher.submit(long_items(50, *range(4))))
    for _ in range(2):
        await asyncio.to_thread(gate.entered.acquire)
    assert reported[1:] == [(100, False), (100, False)]
    gate.open.set()
    await both
    batcher.close()


async def test_a_small_request_waits_for_a_small_step_but_runs_beside_a_long_one() -> None:
    gate = Gate()
    batcher = two_workers(gate)
    small = await started(batcher, gate, 1)
    waiting = asyncio.create_task(batcher.submit(items(2)))
    more = asyncio.create_task(batcher.submit(items(3)))
    await asyncio.sleep(0.02)
    assert gate.batches == [[1]], "the other thread leaves them alone"
    gate.open.set()
    await asyncio.gather(small, waiting, more)
    assert sorted(gate.batches[1]) == [2, 3], "requests that came during the first step share the next one"

    gate.open.clear()
    while gate.entered.acquire(blocking=False):
        pass
    long = asyncio.create_task(batcher.submit(long_items(400, 4)))
    await asyncio.to_thread(gate.entered.acquire)
    beside = asyncio.create_task(batcher.submit(items(5)))
    await asyncio.to_thread(gate.entered.acquire)  # while the long one is held by the gate
    assert not long.done()
    gate.open.set()
    await asyncio.gather(long, beside)
    batcher.close()


async def test_a_ping_is_answered_by_each_thread() -> None:
    gate = Gate()
    batcher = two_workers(gate)
    hung = await started(batcher, gate, 1)
    ping = asyncio.create_task(batcher.ping())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(ping), 0.2)
    gate.open.set()
    await asyncio.gather(hung, ping)
    batcher.close()


class Preparer(Gate):
    """A gate whose steps are prepared. `alive` has the prepared steps that are still referenced."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[list[int]] = []
        self.alive: weakref.WeakSet[Prepared] = weakref.WeakSet()

    def prepare(self, payloads: Sequence[int]) -> "Prepared":
        self.prepared.append(list(payloads))
        if -4 in payloads:
            raise ValueError("minus four")
        step = Prepared(self, payloads)
        self.alive.add(step)
        return step


class Prepared:
    def __init__(self, gate: Preparer, payloads: Sequence[int]) -> None:
        self._gate, self._payloads = gate, payloads

    def __call__(self) -> list[int]:
        return self._gate(self._payloads)


def ahead(gate: Preparer, tokens: int = 20, items: int = 8) -> Batcher[int, int]:
    limits = BatchLimits(tokens=tokens, items=items, waiting=8, padded=False)
    batcher = Batcher("ahead", gate, limits, prepare_step=gate.prepare)
    batcher.start()
    return batcher


async def test_the_next_batch_is_prepared_while_one_runs_and_only_that_one() -> None:
    """Batches and results are those of a batcher that prepares nothing."""
    plain, gate = Gate(), Preparer()
    for batcher, network in ((batcher_of(plain), plain), (ahead(gate), gate)):
        first = await started(batcher, network, 1)
        with batcher._wake:  # so that all wait before any is prepared
            others = [asyncio.create_task(batcher.submit(items(20 + n, 30 + n, 40 + n))) for n in range(3)]
            await asyncio.sleep(0)
        if network is gate:
            await asyncio.to_thread(eventually, lambda: gate.alive)
            assert len(gate.prepared) == 1, "not two ahead"
            assert gate.batches == [[1]], "the prepared one has not run"
        network.open.set()
        await first
        for n, other in enumerate(others):
            assert (await other).results == [200 + 10 * n, 300 + 10 * n, 400 + 10 * n]
        batcher.close()
    assert gate.batches == plain.batches
    assert gate.prepared[0] == gate.batches[1]


async def test_each_further_batch_of_a_request_is_prepared_while_one_runs() -> None:
    gate, steps = Preparer(), threading.Semaphore(0)
    gate.open = SimpleNamespace(wait=lambda seconds: steps.acquire(timeout=seconds))  # type: ignore[assignment]
    batcher = ahead(gate)
    huge = await started(batcher, gate, *range(9))
    for count in (1, 2, 3):
        await asyncio.to_thread(eventually, lambda count=count: len(gate.prepared) == count)
        assert len(gate.batches) == count
        steps.release()
        await asyncio.to_thread(gate.entered.acquire)
    steps.release(9)
    await huge
    batcher.close()


async def test_a_batch_that_is_not_full_waits_for_more() -> None:
    gate = Preparer()
    batcher = ahead(gate, tokens=100)
    first = await started(batcher, gate, 1)
    few = asyncio.create_task(batcher.submit(items(2, 3)))
    await asyncio.sleep(0.05)
    assert gate.prepared == []
    more = asyncio.create_task(batcher.submit(items(4)))
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(first, few, more)
    assert sorted(gate.batches[1]) == [2, 3, 4]
    batcher.close()


async def test_a_cancel_frees_what_was_prepared() -> None:
    gate = Preparer()
    batcher = ahead(gate)
    first = await started(batcher, gate, 1)
    cancelled = asyncio.create_task(batcher.submit(items(2, 3)))
    await asyncio.to_thread(eventually, lambda: gate.alive)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await asyncio.to_thread(eventually, lambda: not gate.alive)

    half = [asyncio.create_task(batcher.submit(items(n))) for n in (4, 5)]
    await asyncio.to_thread(eventually, lambda: gate.alive)
    half[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await half[0]
    gate.open.set()
    assert (await half[1]).results == [50]
    await first
    assert gate.batches == [[1], [5]]
    batcher.close()
    assert not gate.alive


async def test_items_that_cannot_be_prepared_fail_when_they_run() -> None:
    gate = Preparer()
    batcher = ahead(gate)
    first = await started(batcher, gate, 1)
    broken = asyncio.create_task(batcher.submit(items(-4, -1)))
    await asyncio.to_thread(eventually, lambda: gate.prepared)
    gate.open.set()
    with pytest.raises(EngineFailed, match="minus one"):
        await broken
    assert (await batcher.submit(items(6))).results == [60]
    await first
    await batcher.ping()
    batcher.close()
    assert not any(thread.is_alive() for thread in batcher._all_threads())


@pytest.mark.parametrize("seed", range(3))
async def test_no_result_is_lost_when_requests_come_and_are_cancelled_at_random(seed: int) -> None:
    """Each request gets its own results, and cancelled ones leave nothing behind."""
    gate, rng = Preparer(), random.Random(seed)
    batcher = ahead(gate, tokens=50, items=4)
    batcher.limits.waiting = 1000
    tasks: dict[asyncio.Task[Answers[int]], list[int]] = {}
    for number in range(200):
        if number == 100:
            await asyncio.to_thread(eventually, lambda: gate.prepared)
            gate.open.set()
        payloads = [number * 10 + n for n in range(rng.randrange(1, 7))]
        tasks[asyncio.create_task(batcher.submit(items(*payloads)))] = payloads
        if rng.random() < 0.3:
            rng.choice(list(tasks)).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for payloads, result in zip(tasks.values(), results, strict=True):
        if isinstance(result, BaseException):
            assert isinstance(result, asyncio.CancelledError)
        else:
            assert result.results == [n * 10 for n in payloads]
    assert all(len(batch) <= 4 for batch in gate.batches)
    batcher.close()
    assert not gate.alive
