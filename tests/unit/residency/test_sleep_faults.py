"""Models that die, wake wrong or hold too much memory around a sleep, with scripted engines in real slots."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from models.messages import MemoryFootprint
from registry.errors import EngineFailed
from runtime.config.budgets import DeviceBudget
from runtime.residency import drainer
from runtime.residency.states import ModelState
from runtime.slots import frames
from runtime.slots.link import Cause
from tests.fakes.engine import FakeEngine
from tests.unit.residency.scripted import World, in_use, recipe
from tests.unit.residency.sleepers import ASLEEP, can_sleep, reached, used_bytes, world_of_sleepers


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of_sleepers(tmp_path) as world:
        yield world


async def test_a_model_that_dies_asleep_is_absent_without_a_back_off(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    await world.pool.links[0].end(cause=Cause("killed", "SIGKILL"))
    await reached(world, "a", ModelState.ABSENT)
    entry = world.manager.entries["a"]
    assert (entry.failures, used_bytes(world, "a")) == ([], (0, 0))
    assert "died a killed" in world.witness.events
    await asyncio.sleep(0.01)
    assert world.state("a") is ModelState.ABSENT, "without a request it is not loaded again"
    assert await world.ask("a")


async def test_a_model_that_dies_while_falling_asleep_frees_its_memory(world: World) -> None:
    await world.ask("a")
    world.pool.engines[0].sleep_gate.clear()
    other = asyncio.create_task(world.ask("b"))
    await reached(world, "a", ModelState.DRAINING)
    await asyncio.sleep(0.01)
    await world.pool.links[0].end(cause=Cause("killed", "SIGKILL"))
    assert await asyncio.wait_for(other, 200)
    assert world.state("a") is ModelState.ABSENT
    assert world.manager.entries["a"].failures == []


async def test_a_model_that_cannot_sleep_ends_and_stops_trying(world: World) -> None:
    world.pool.make = lambda: FakeEngine(asleep=ASLEEP, sleep_error=EngineFailed("no"))
    for name in "abababa":
        assert await world.ask(name)
    assert world.witness.events[:4] == ["loaded a", "sleep failed a", "evicted a", "loaded b"]
    assert world.witness.events.count("sleep failed a") == 2
    assert world.manager.entries["a"].asleep is None


async def test_a_model_ends_if_an_aborted_request_does_not_leave_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not sleep with a request in its engine, and must not stay in memory for it either."""
    monkeypatch.setattr(drainer, "ABORT_SECONDS", 0.01)
    await world.ask("a")
    world.manager.entries["a"].recipe = recipe("a", drain_deadline=0.01)
    async with in_use(world, "a"):
        assert await asyncio.wait_for(world.ask("b"), 200)
    assert world.witness.events == ["loaded a", "evicted a", "loaded b"]


async def test_a_model_may_sleep_after_one_failure(world: World) -> None:
    made = iter([FakeEngine(asleep=ASLEEP, sleep_error=EngineFailed("no")), *(can_sleep() for _ in range(3))])
    world.pool.make = lambda: next(made)
    for name in "abab":
        assert await world.ask(name)
    assert world.state("a") is ModelState.ASLEEP
    assert world.manager.entries["a"].failed_sleeps == 0


async def test_a_model_that_woke_wrong_is_loaded_again_before_it_answers(world: World) -> None:
    made = iter([FakeEngine(asleep=ASLEEP, wake_error=EngineFailed("other weights")), can_sleep(), can_sleep()])
    world.pool.make = lambda: next(made)
    await world.ask("a")
    await world.ask("b")
    assert len(await world.ask("a")) == 3
    assert world.pool.engines[0].answered == [("call", "a")], "only before its sleep"
    assert world.witness.events[-3:] == ["slept b", "wake failed a", "loaded a"]
    assert world.manager.entries["a"].asleep is None
    assert [link.ended for link in world.pool.links] == [1, 0, 0], "it no longer holds memory"


async def test_a_model_that_dies_while_waking_is_loaded_again(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    world.pool.engines[0].sleep_gate.clear()
    requested = asyncio.create_task(world.ask("a"))
    await reached(world, "a", ModelState.LOADING)
    while (progress := world.manager.entries["a"].progress) is None or progress.phase != "waking":
        await asyncio.sleep(0.001)
    await world.pool.links[0].crash()
    assert len(await asyncio.wait_for(requested, 200)) == 3
    assert world.manager.entries["a"].loads == 2


async def test_a_model_that_dies_after_its_wake_is_loaded_again(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    link = world.pool.links[0]
    command = link.command

    async def then_dies(make: Callable[[int], frames.ToSlot], timeout: float) -> MemoryFootprint | None:
        used_bytes = await command(make, timeout)
        await link.crash()
        return used_bytes

    link.command = then_dies  # type: ignore[method-assign]
    assert len(await asyncio.wait_for(world.ask("a"), 200)) == 3
    assert world.witness.events[-2:] == ["wake failed a", "loaded a"]


async def test_a_model_that_dies_before_its_wake_is_loaded_and_no_other_slot_is_touched(
    world: World,
) -> None:
    await world.ask("a")
    await world.ask("b")
    other = world.pool.engines[1]
    other.gate.clear()
    running = asyncio.create_task(world.ask("b"))
    while not other.running:
        await asyncio.sleep(0.001)
    requested = asyncio.create_task(world.ask("a"))
    await reached(world, "a", ModelState.LOADING)
    assert used_bytes(world, "a") == (5, 90), "it waits for b and holds only its memory of a sleep"
    await world.pool.links[0].crash()
    while world.manager.entries["a"].claim:
        await asyncio.sleep(0.001)
    other.gate.set()
    assert len(await running) == 3
    assert len(await asyncio.wait_for(requested, 200)) == 3
    assert world.witness.events == ["loaded a", "slept a", "loaded b", "died a ended", "slept b", "loaded a"]
    assert [link.ended for link in world.pool.links] == [0, 0, 0]
    assert world.manager.entries["a"].asleep is not None


async def test_a_wake_whose_room_is_lost_to_growth_waits_for_room(world: World) -> None:
    """While `b` leaves for `a`, `c`, which is in use, grows to 155 of 215 bytes."""
    manager = world.manager
    manager.table.budgets = (DeviceBudget(manager.table.budgets[0].device, 215),)
    for name in "abc":
        await world.ask(name)
    assert world.state("a") is ModelState.ASLEEP
    async with in_use(world, "c"):
        async with in_use(world, "b"):
            manager.entries["c"].last_used += 100
            requested = asyncio.create_task(world.ask("a"))
            await reached(world, "b", ModelState.DRAINING)
            c = manager.entries["c"]
            assert c.link is not None
            await manager.watcher.holds(c, c.link, 155)
        await reached(world, "c", ModelState.DRAINING)
        assert not requested.done()
    assert await asyncio.wait_for(requested, 200)
    assert world.witness.events[-4:] == ["grew c 155", "evicted b", "slept c", "woke a"]


async def test_a_model_that_frees_too_little_by_sleeping_ends(world: World) -> None:
    class Liar(FakeEngine):
        async def sleep(self) -> MemoryFootprint:
            await super().sleep()
            return MemoryFootprint(device_bytes=95, host_bytes=90)

    world.pool.make = lambda: Liar(asleep=ASLEEP)
    await world.ask("a")
    assert await asyncio.wait_for(world.ask("b"), 200)
    assert world.witness.events == ["loaded a", "slept a", "evicted a", "loaded b"]
    await asyncio.wait_for(world.ask("a"), 200)
    assert world.manager.entries["a"].asleep is None, "by measurement, a sleep of this model frees nothing"


async def test_a_sleeping_engine_that_does_not_answer_is_ended(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    world.pool.engines[0].ping_gate.clear()
    watching = asyncio.create_task(world.manager.watcher.watch(heartbeat=0.01, hung_after=0.05))
    await reached(world, "a", ModelState.ABSENT)
    watching.cancel()
    assert "died a engine_hung" in world.witness.events
    assert world.state("b") is ModelState.READY


async def test_memory_is_not_reused_before_it_is_seen_as_free(world: World) -> None:
    seen = asyncio.Event()

    async def back(freed: int, before: int | None) -> None:
        assert freed == 95
        await seen.wait()

    await world.ask("a")
    world.memory.back = back  # type: ignore[method-assign]
    other = asyncio.create_task(world.ask("b"))
    while not world.pool.engines[0].sleeps:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert (world.state("a"), used_bytes(world, "a")[0]) == (ModelState.DRAINING, 100)
    assert len(world.pool.engines) == 1
    seen.set()
    assert await other


async def test_host_memory_is_not_reused_before_it_is_seen_as_free(world: World) -> None:
    """`c` fits on the device, but not into host memory until `a`, which sleeps there, has left."""
    seen = asyncio.Event()

    async def back(freed: int, before: int | None) -> None:
        await seen.wait()

    for name in "ab":
        await world.ask(name)
    await world.manager.unload(world.manager.entries["b"])
    world.manager.entries["c"].host_needed = 120
    world.memory.back = back  # type: ignore[method-assign]
    leaving = asyncio.create_task(world.manager.unload(world.manager.entries["a"]))
    await reached(world, "a", ModelState.UNLOADING)
    other = asyncio.create_task(world.ask("c"))
    await reached(world, "c", ModelState.LOADING)
    await asyncio.sleep(0.01)
    assert used_bytes(world, "a") == (5, 90)
    assert len(world.pool.engines) == 2
    seen.set()
    await leaving
    assert await other


async def test_only_memory_that_a_process_held_is_awaited(world: World) -> None:
    """The memory that is reserved for a step is not held by an ending process."""
    awaited: list[int] = []

    async def back(freed: int, before: int | None) -> None:
        awaited.append(freed)

    world.memory.back = back  # type: ignore[method-assign]
    a = world.manager.entries["a"]
    for entry in world.manager.entries.values():
        entry.margin = 10
    await world.ask("a")
    assert a.bytes == 110
    await world.manager.unload(a)
    await world.ask("a")
    await world.ask("b")  # `a` sleeps
    assert used_bytes(world, "a")[0] == 5
    await world.manager.unload(a)
    await world.manager.unload(world.manager.entries["b"])
    assert awaited == [100, 95, 5, 100]
    awaited.clear()
    await world.ask("a")
    await world.pool.links[-1].crash()
    await world.ask("a")
    assert awaited == [100]
    awaited.clear()
    await world.ask("b")
    world.pool.engines[-2].wake_error = EngineFailed("no")
    assert await world.ask("a")
    assert awaited == [95, 95, 100], "the first sleep, the second one for the wake, and the end of the failed wake"


async def test_a_departure_that_outlived_its_engine_leaves_the_next_engine_alone(tmp_path: Path) -> None:
    """It waited for host memory when its engine died; the next one drains with a request."""
    world = World(tmp_path, "ab", budget=250, host_budget=100)
    world.pool.make = can_sleep
    drainer, a, b = world.manager.drainer, world.manager.get("a"), world.manager.get("b")
    await world.ask("b")
    drainer.dismiss(b, sleep=True)
    await drainer.leave(b, "idle")
    await world.ask("a")
    drainer.dismiss(b)  # holds its host memory until it has left
    drainer.dismiss(a, sleep=True)
    first = asyncio.create_task(drainer.leave(a, "idle"))
    await asyncio.sleep(0.01)
    await world.pool.links[1].crash()
    await reached(world, "a", ModelState.ABSENT)
    async with in_use(world, "a"):
        drainer.dismiss(a)
        second = asyncio.create_task(drainer.leave(a, "by hand"))
        await drainer.leave(b, "by hand")
        await asyncio.wait_for(first, 200)
        assert (a.state, world.pool.links[2].ended) == (ModelState.DRAINING, 0)
    await asyncio.wait_for(second, 200)
    assert (a.state, world.pool.links[2].ended) == (ModelState.ABSENT, 1)
    await world.manager.close()
    await world.pool.close()
