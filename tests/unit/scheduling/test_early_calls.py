"""Requests that start before their adapter is placed: each case, and random interleavings on a virtual clock."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from models.messages import AdapterRef, HttpCall, MemoryFootprint
from registry.errors import Conflict, EngineFailed, RoundhouseError, Unfit
from registry.recipes.definition import Recipe
from runtime.scheduling.admission import WaitingBound
from runtime.scheduling.queue import ModelQueue
from runtime.slots import frames
from runtime.slots.link import SlotLink
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import NoAdapters
from tests.fakes.virtual import run
from tests.unit.scheduling.adapter_line import RIGHT, World, adapter, ask, dropped, line_with_adapters

INTERLEAVINGS = int(os.environ.get("INTERLEAVINGS", "1000"))
"""The number of runs of a few requests each. A long test uses 10,000."""
FEWEST, MOST, ADAPTERS = 2, 12, "abcdef"
"""The bounds on the requests of a run, and their adapters."""
GONE = EngineFailed("The engine died while it was answering.", code="engine_died")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with line_with_adapters(tmp_path) as world:
        yield world


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(200):
        while not holds():
            await asyncio.sleep(0.001)


async def test_a_request_reaches_the_engine_before_its_adapter_is_placed(world: World) -> None:
    world.engine.place_gate.clear()
    waiting = asyncio.create_task(ask(world, adapter("a")))
    await until(lambda: bool(world.engine.arrivals) and world.queue.running == 1)
    assert world.queue.adapter_status(adapter("a").digest).tier == "host", "it is not placed yet"
    assert not world.engine.answered, "the request has not run"
    world.engine.place_gate.set()
    assert await waiting == 5
    status = world.queue.adapter_status(adapter("a").digest)
    assert (status.tier, status.misses, status.hits) == ("device", 1, 0)


async def test_the_wait_for_the_place_counts_as_waiting(world: World) -> None:
    world.engine.place_gate.clear()
    lease = await world.queue.acquire(adapter("a"))
    before = lease.ticket.queued_seconds
    world.clock = 7.0
    world.engine.place_gate.set()
    await until(lambda: lease.ticket.queued_seconds > 7.0)
    assert before < 7.0
    assert 7.0 < lease.ticket.swap_seconds <= lease.ticket.queued_seconds
    lease.release()


async def test_a_failed_placement_fails_only_the_requests_that_wait_for_it(world: World) -> None:
    world.engine.place_error = EngineFailed("the copy failed")
    world.engine.place_gate.clear()
    broken = [asyncio.create_task(ask(world, adapter("a"))) for _ in range(2)]
    await until(lambda: world.queue.running == 2)
    assert await ask(world, None) == 5
    world.engine.place_gate.set()
    for result in await asyncio.gather(*broken, return_exceptions=True):
        assert isinstance(result, EngineFailed)
        assert (result.code, result.message) == ("adapter_failed", "The adapter could not be loaded: the copy failed")
    await dropped(world, adapter("a"))
    world.engine.place_error = None
    assert await asyncio.gather(*(ask(world, adapter(letter)) for letter in "abca")) == [5] * 4


async def test_an_adapter_that_no_longer_fits_its_base_is_a_conflict_and_no_failure_of_the_server(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stage(adapter: AdapterRef) -> None:
        raise Unfit("layer 0: made for (8, 4) where the layer is (16, 4)")

    monkeypatch.setattr(world.engine, "stage", stage)
    for _ in range(2):
        with pytest.raises(Conflict, match=r"does not fit the weights .* now: layer 0: made for") as refused:
            await ask(world, adapter("a"))
        assert refused.value.code == "unfit_adapter"
        assert not refused.value.should_retry
    assert await ask(world, None) == 5


async def test_the_gateway_ends_requests_with_a_failed_placement(world: World) -> None:
    """Their slot may hang."""
    world.engine.place_gate.clear()
    lease = await world.queue.acquire(adapter("a"))
    world.queue.adapter_failed(
        adapter("a").digest, EngineFailed("The adapter could not be loaded.", code="adapter_failed")
    )
    assert lease.ticket.aborted.result().code == "adapter_failed"
    assert adapter("a").digest not in world.engine.dropped, "a request still uses its place"
    world.engine.place_gate.set()
    lease.release()
    await dropped(world, adapter("a"))


async def test_a_probe_comes_before_any_request(world: World) -> None:
    world.registry.known[adapter("a").digest] = (RIGHT,)
    world.engine.place_gate.clear()
    waiting = asyncio.create_task(ask(world, adapter("a"), RIGHT))
    await until(lambda: bool(world.engine.arrivals))
    await asyncio.sleep(0.01)
    assert world.queue.running == 0
    world.engine.place_gate.set()
    assert await waiting == 5
    assert [kind for kind, _ in world.engine.answered] == ["probe", "call"]


# --- interleavings ----------------------------------------------------------------------------------------------------
class RandomEngine(FakeEngine):
    """Takes random times and fails at random."""

    chance: random.Random

    async def stage(self, adapter: AdapterRef) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.1))
        if self.chance.random() < 0.05:
            raise EngineFailed("the file is broken")
        await super().stage(adapter)

    async def place(self, adapter: AdapterRef, evict: str | None, patience: float = 0.0) -> None:
        self.place_gate.clear()
        asyncio.get_running_loop().call_later(self.chance.uniform(0, 0.1), self.place_gate.set)
        self.place_error = EngineFailed("the copy failed") if self.chance.random() < 0.1 else None
        await super().place(adapter, evict, patience)


class EngineLink:
    """A slot's link without a process. Each frame gets a task of its own, started in the order of sending."""

    connected, pid = True, 1

    def __init__(self, engine: RandomEngine) -> None:
        self.engine = engine
        self.tasks: set[asyncio.Task[None]] = set()

    def send(self, frame: frames.ToSlot) -> asyncio.Task[None]:
        task = asyncio.create_task(self._work(frame))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def command(
        self, make: Callable[[int], frames.ToSlot], timeout: float, sent: Callable[[], None] = lambda: None
    ) -> MemoryFootprint | None:
        task = self.send(make(0))
        sent()
        await asyncio.wait([task], timeout=timeout)
        assert task.done(), "a command hangs"
        if task.cancelled():
            raise GONE
        task.result()
        return None

    async def _work(self, frame: frames.ToSlot) -> None:
        match frame:
            case frames.Stage():
                await self.engine.stage(frame.adapter)
            case frames.Place():
                await self.engine.place(frame.adapter, frame.evict, 30.0)
            case frames.Drop():
                await self.engine.drop(frame.digest)
            case frames.Call():
                async with aclosing(self.engine.call(frame.decoded(HttpCall))) as answer:
                    async for _ in answer:
                        await asyncio.sleep(self.engine.chance.uniform(0, 0.05))

    def die(self) -> None:
        for task in list(self.tasks):
            task.cancel()


class Traffic:
    """A few requests that arrive, are cancelled or lose their engine at random times."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.requests = self.chance.randint(FEWEST, MOST)
        self.seconds = self.requests / 10
        """The time during which they arrive."""
        recipe = {
            "id": "m", "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"},
            "memory": {"adapters": {"device": self.chance.randint(1, 3), "host": 4}},
            "batching": {"max_requests": self.chance.randint(1, 6)}, "queue": {"max_wait": 1000},
        }  # fmt: skip
        loop = asyncio.get_running_loop()
        self.queue = ModelQueue(
            Recipe.model_validate(recipe), WaitingBound(1000), request_load=lambda: None, released=lambda: None,
            registry=NoAdapters(), clock=loop.time,
        )  # fmt: skip
        self.link = self._start()
        self.ends = Counter[str]()

    def _start(self) -> EngineLink:
        engine = RandomEngine(chunks=self.chance.randint(1, 4))
        engine.chance = self.chance
        link = EngineLink(engine)
        self.queue.open(cast(SlotLink, link))
        return link

    async def request(self, letter: str | None) -> None:
        """Run one request to its end."""
        ref = None if letter is None else adapter(letter)
        call = HttpCall(path="/", body=b"", served="s", display_name="s", adapter=ref)
        try:
            async with await self.queue.acquire(ref) as lease:
                running = cast(EngineLink, lease.link).send(frames.Call.of(1, call))
                try:
                    aborted = lease.ticket.aborted
                    assert aborted is not None
                    ends: list[asyncio.Future[Any]] = [running, aborted]
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    if aborted.done():
                        raise aborted.result()
                    if running.cancelled():
                        raise GONE
                    running.result()
                finally:  # like a call that is left early
                    running.cancel()
                    await asyncio.wait([running])
        except RoundhouseError as error:
            self.ends[error.code or error.message] += 1
        else:
            self.ends["answered"] += 1

    async def client(self) -> None:
        await asyncio.sleep(self.chance.uniform(0, self.seconds))
        letter = self.chance.choice([None, *ADAPTERS])
        leaves = self.chance.uniform(0, 0.5) if self.chance.random() < 0.25 else 300.0
        try:
            async with asyncio.timeout(leaves):
                await self.request(letter)
        except TimeoutError:
            assert leaves < 300.0, "a request waited for ever"
            self.ends["left"] += 1

    async def restarts(self) -> None:
        for _ in range(self.chance.randint(0, 2)):
            await asyncio.sleep(self.chance.uniform(0, self.seconds))
            self.queue.close()
            self.link.die()
            self.queue.engine_gone()
            await asyncio.sleep(self.chance.uniform(0, 0.2))
            self.link = self._start()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.restarts())
            for _ in range(self.requests):
                group.create_task(self.client())
        await self.queue.effects.wait_until_settled()
        engine, policy = self.link.engine, self.queue.policy
        assert (self.queue.running, self.queue.waiting, policy.moving()) == (0, 0, {})
        assert set(policy.resident()) == engine.places
        assert not +engine.in_use


def test_no_call_runs_before_its_adapter_is_placed_and_none_waits_forever() -> None:
    """The engine refuses a call whose adapter is not placed, and fails at each illegal step.

    There are a thousand random interleavings of stage, place, call, cancel and failure, or ten thousand with
    INTERLEAVINGS=10000.
    """
    ends = Counter[str]()

    async def run_seed(seed: int) -> None:
        traffic = Traffic(seed)
        await traffic.run()
        ends.update(traffic.ends)

    for seed in range(INTERLEAVINGS):
        run(run_seed(seed))
    assert ends.keys() == {"answered", "adapter_failed", "engine_died", "left"}
    total = ends.total()
    assert ends["answered"] > total / 3
    assert ends["adapter_failed"] > total / 100
    assert ends["engine_died"] > total / 100
    assert ends["left"] > total / 100
