"""Models that fall asleep and wake, with scripted engines in real slots: states, budgets and adapters."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models.messages import AdapterRef, MemoryFootprint
from registry.errors import DoesNotFit
from registry.recipes.definition import Recipe
from runtime.config.budgets import DeviceBudget
from runtime.residency.states import ModelState
from runtime.scheduling.admission import WaitingBound
from runtime.scheduling.queue import ModelQueue
from tests.eventually import PATIENCE
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import NoAdapters
from tests.unit.residency.scripted import World, recipe
from tests.unit.residency.sleepers import can_sleep, reached, used_bytes, world_of_sleepers


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of_sleepers(tmp_path) as world:
        yield world


def with_adapters(world: World) -> ModelQueue:
    """Give model a two places for adapters."""
    places = {"adapters": {"device": 2, "host": 4, "max_rank": 8}}
    expected = Recipe.model_validate({**recipe("a").model_dump(mode="json"), "memory": places})
    entry = world.manager.entries["a"]
    queue = ModelQueue(
        expected, WaitingBound(100), lambda: world.manager.request_load(entry), lambda: world.manager.released(entry),
        NoAdapters(),
    )  # fmt: skip
    entry.queue = world.queues["a"] = queue
    return queue


async def test_a_victim_sleeps_and_wakes_in_its_slot(world: World) -> None:
    for name in "aba":
        assert await world.ask(name)
    assert world.witness.events == ["loaded a", "slept a", "loaded b", "slept b", "woke a"]
    assert len(world.pool.links) == 2
    assert (used_bytes(world, "a"), used_bytes(world, "b")) == ((100, 90), (5, 90))
    assert world.manager.entries["a"].wakes == 1
    assert world.manager.entries["a"].tier.value == "device"
    assert world.manager.entries["b"].tier.value == "host"


async def test_the_longest_sleeping_model_ends_for_host_memory(world: World) -> None:
    world.manager.entries["c"].host_needed = 1
    for name in "abc":
        await world.ask(name)
    assert sorted(world.witness.events[-3:]) == ["evicted a", "loaded c", "slept b"]
    assert used_bytes(world, "a") == (0, 0)
    assert world.manager.table.used_host_bytes() <= world.manager.table.host_budget
    assert world.pool.links[0].ended == 1


async def test_running_requests_finish_before_it_sleeps(world: World) -> None:
    await world.ask("a")
    engine = world.pool.engines[0]
    engine.gate.clear()
    running = asyncio.create_task(world.ask("a"))
    while not engine.running:
        await asyncio.sleep(0.001)
    other = asyncio.create_task(world.ask("b"))
    await reached(world, "a", ModelState.DRAINING)
    assert not engine.sleeps
    engine.gate.set()
    assert len(await running) == 3
    assert await other
    assert engine.sleeps


async def test_a_request_during_a_sleep_is_served_after_the_wake(world: World) -> None:
    await world.ask("a")
    engine = world.pool.engines[0]
    engine.sleep_gate.clear()
    other = asyncio.create_task(world.ask("b"))
    await reached(world, "a", ModelState.DRAINING)
    requested = asyncio.create_task(world.ask("a"))
    await asyncio.sleep(0.01)
    assert not other.done(), "its memory is not back yet"
    engine.sleep_gate.set()
    assert len(await requested) == 3
    assert await other
    assert "woke a" in world.witness.events


async def test_the_memory_of_a_wake_counts_from_its_start(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    entry, engine = world.manager.entries["a"], world.pool.engines[0]
    engine.sleep_gate.clear()
    requested = asyncio.create_task(world.ask("a"))
    async with asyncio.timeout(200):
        while entry.progress is None or entry.progress.phase != "waking":
            await asyncio.sleep(0.001)
    assert world.manager.table.used_bytes() == 100 + 5, "the next load must not take the bytes that the wake is filling"
    assert entry.claim == 0, "counted once"
    engine.sleep_gate.set()
    assert await requested


async def test_a_sleeping_model_ends_for_a_missing_slot(world: World) -> None:
    world.pool.free = world.pool.size = 2
    for name in "abc":
        await world.ask(name)
    assert "evicted a" in world.witness.events
    assert [world.state(name) for name in "abc"] == [ModelState.ABSENT, ModelState.ASLEEP, ModelState.READY]


async def test_an_explicit_unload_ends_a_sleeping_model(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    await world.manager.unload(world.manager.entries["a"])
    assert world.state("a") is ModelState.ABSENT
    await world.manager.unload(world.manager.entries["b"])
    assert "slept b" not in world.witness.events
    assert world.manager.table.used_bytes() == world.manager.table.used_host_bytes() == 0


async def test_an_explicit_load_wakes_a_model(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    await world.manager.load(world.manager.entries["a"])
    assert world.state("a") is ModelState.READY
    world.manager.entries["a"].pinned = True
    with pytest.raises(DoesNotFit):
        await asyncio.wait_for(world.manager.load(world.manager.entries["b"]), 200)


async def test_a_recipe_can_forbid_or_force_sleep(world: World) -> None:
    world.manager.entries["a"].recipe = recipe("a", sleep="never")
    await world.ask("a")
    await world.ask("b")
    assert world.witness.events == ["loaded a", "evicted a", "loaded b"]
    entry = world.manager.entries["b"]
    entry.slept = MemoryFootprint(device_bytes=60, host_bytes=90)
    assert entry.asleep is None, "it frees less than half"
    entry.slept = MemoryFootprint(device_bytes=5, host_bytes=0)
    assert entry.asleep is None, "nothing stays in memory, so a wake would read from disk like a load"
    entry.recipe = recipe("b", sleep="always")
    assert entry.asleep is not None


async def test_two_models_with_room_for_one_asleep_do_not_wait_for_each_other(world: World) -> None:
    world.manager.table.budgets, world.manager.table.host_budget = (DeviceBudget("cpu:0", 250),), 100
    await world.ask("a")
    await world.ask("b")
    for name in "ab":
        world.manager.drainer.dismiss(world.manager.entries[name], sleep=True)
    async with asyncio.timeout(200):
        await asyncio.gather(*(world.manager.drainer.leave(world.manager.entries[name], "test") for name in "ab"))
    assert sorted(world.state(name).value for name in "ab") == ["absent", "asleep"]


async def in_place(engine: FakeEngine, adapter: AdapterRef) -> None:
    """Return once only this adapter is in a place."""
    async with asyncio.timeout(200):
        while engine.places != {adapter.digest}:
            await asyncio.sleep(0.001)


async def test_adapters_are_placed_again_after_a_wake(tmp_path: Path) -> None:
    world = World(tmp_path, "ab", budget=115)
    world.pool.make = can_sleep
    entry = world.manager.entries["a"]
    queue = with_adapters(world)
    adapter = AdapterRef(digest="sha256:" + "1" * 64, path="x", rank=8, bytes=1)
    for turn in range(2):
        async with await queue.acquire(adapter):
            engine = world.pool.engines[0]
            await in_place(engine, adapter)
            assert engine.naps == turn
            async with asyncio.timeout(PATIENCE):  # the engine's answer is on its way
                while queue.policy.status(adapter.digest).tier != "device":
                    await asyncio.sleep(0.001)
        await world.ask("b")
        assert entry.state is ModelState.ASLEEP
        assert engine.places == set()
        assert queue.policy.status(adapter.digest).tier == "disk"
    await world.manager.close()
    await world.pool.close()


async def test_an_adapter_being_staged_is_placed_before_the_engine_sleeps(tmp_path: Path) -> None:
    world = World(tmp_path, "ab", budget=115)
    world.pool.make = can_sleep
    queue = with_adapters(world)
    checked = asyncio.Event()

    class Slow:
        async def check(self, digest: str) -> None:
            await checked.wait()

        def note(self, step: str, seconds: float, outcome: str) -> None:
            return

        def swapped(self, digest: str, evicted: str | None, staging: float, placing: float) -> None:
            return

        def probes(self, digest: str) -> tuple[()]:
            return ()

    await world.ask("a")
    queue.effects._registry = Slow()  # type: ignore[assignment]
    adapter = AdapterRef(digest="sha256:" + "2" * 64, path="x", rank=8, bytes=1)
    requested = asyncio.create_task(queue.acquire(adapter))
    other = asyncio.create_task(world.ask("b"))
    await reached(world, "a", ModelState.DRAINING)
    await asyncio.sleep(0.01)
    assert world.pool.engines[0].naps == 0, "a staging is under way"
    checked.set()
    assert await other
    lease = await requested
    await in_place(world.pool.engines[0], adapter)
    lease.release()
    await world.manager.close()
    await world.pool.close()


async def test_host_memory_for_staged_adapters_is_reserved_only_while_awake(tmp_path: Path) -> None:
    world = World(tmp_path, "ab", budget=115, host_budget=240)
    world.pool.make = can_sleep
    world.manager.entries["a"].host_adapters = 50
    await world.ask("a")
    assert used_bytes(world, "a") == (100, 51)
    await world.ask("b")
    assert used_bytes(world, "a") == (5, 90)
    assert world.manager.plan(world.manager.entries["a"]).host_needed == 140
    await world.ask("a")
    assert used_bytes(world, "a") == (100, 140)
    assert used_bytes(world, "b") == (5, 90)
    await world.manager.close()
    await world.pool.close()
