"""Models that take over each other's engine, with scripted engines in real slots: states, budgets, faults.

A scripted engine fails the test when a request of another model meets it, and when it is used after a failed swap.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from registry.errors import EngineFailed
from registry.recipe import Recipe
from runtime.residency.states import ModelState
from runtime.scheduling.queue import Bounds, ModelQueue
from runtime.slots.death import Cause
from tests.fakes.engine import FakeEngine
from tests.unit.runtime.adapter_line import adapter as ref
from tests.unit.runtime.scripted import World, recipe
from tests.unit.runtime.sleepers import held, reached


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Each of 100 bytes, room for one; a and b are twins, c is not."""
    world = World(tmp_path, "abc", budget=150)
    for name in "ab":
        world.manager.entries[name].twin = "alike"
    yield world
    await world.manager.close()
    await world.pool.close()


def plan_of(world: World, name: str) -> list[str]:
    return [f"{v.action} {v.id}" for v in world.manager.plan(world.manager.entries[name]).victims]


async def test_twins_follow_each_other_in_one_slot(world: World) -> None:
    await world.ask("a")
    assert plan_of(world, "b") == ["swap a"]
    for name in "bab":
        assert len(await world.ask(name)) == 3
    assert world.witness.events == [
        "loaded a", "evicted a", "swapped b", "evicted b", "swapped a", "evicted a", "swapped b",
    ]  # fmt: skip
    (engine,), (link,) = world.pool.engines, world.pool.links
    assert engine.swaps == ["b", "a", "b"]
    assert link.ended == 0
    assert (held(world, "a"), held(world, "b")) == ((0, 0), (100, 0))
    entry = world.manager.entries["b"]
    assert (entry.load_seconds, entry.measured_swap) == (0.1, 0.05), "what a load takes is not known by a swap"
    assert world.manager.plan(world.manager.entries["a"]).expected_seconds == 0.05


async def test_who_is_no_twin_gets_a_slot_of_its_own(world: World) -> None:
    await world.ask("a")
    assert plan_of(world, "c") == ["evict a"]
    for name in "ca":
        await world.ask(name)
    assert [engine.swaps for engine in world.pool.engines] == [[], [], []]


async def test_a_busy_twin_drains_and_ends(world: World) -> None:
    await world.ask("a")
    engine = world.pool.engines[0]
    engine.gate.clear()
    running = asyncio.create_task(world.ask("a"))
    while not engine.running:
        await asyncio.sleep(0.001)
    other = asyncio.create_task(world.ask("b"))
    await reached(world, "a", ModelState.DRAINING)
    engine.gate.set()
    assert len(await running) == 3
    assert await other
    assert not engine.swaps


async def test_who_asks_for_the_model_that_left_is_served_after_it(world: World) -> None:
    await world.ask("a")
    engine = world.pool.engines[0]
    engine.swap_gate.clear()
    coming = asyncio.create_task(world.ask("b"))
    async with asyncio.timeout(5):
        while not engine.broken:
            await asyncio.sleep(0.001)
    assert world.state("a") is ModelState.ABSENT
    assert world.manager.held() == 100, "one engine is counted once"
    left = asyncio.create_task(world.ask("a"))
    await asyncio.sleep(0.01)
    assert not left.done()
    engine.swap_gate.set()
    assert len(await coming) == len(await left) == 3
    assert engine.swaps[0] == "b"  # then a drains b, or takes its engine, by who is quicker


async def test_others_leave_first_when_one_engine_is_not_enough(world: World) -> None:
    world.manager.budget = 250
    world.manager.entries["b"].needed = 180
    await world.ask("a")
    await world.ask("c")
    assert sorted(plan_of(world, "b")) == ["evict c", "swap a"]
    await world.ask("b")
    assert world.witness.events[-3:] == ["evicted c", "evicted a", "swapped b"]
    assert world.pool.links[1].ended == 1


async def test_a_swap_that_fails_is_a_load_and_not_tried_again(world: World) -> None:
    made = iter([FakeEngine(swap_error=EngineFailed("other tensors"))])
    world.pool.make = lambda: next(made, FakeEngine())
    await world.ask("a")
    assert len(await world.ask("b")) == 3
    assert world.witness.events == ["loaded a", "evicted a", "swap failed b", "loaded b"]
    assert world.pool.links[0].ended == 1
    assert [engine.answered for engine in world.pool.engines] == [[("call", "a")], [("call", "b")]]
    assert plan_of(world, "a") == ["evict b"]
    assert world.manager.held() == 100


async def test_a_slot_that_dies_in_a_swap_is_a_load(world: World) -> None:
    await world.ask("a")
    world.pool.engines[0].swap_gate.clear()
    coming = asyncio.create_task(world.ask("b"))
    async with asyncio.timeout(5):
        while not world.pool.engines[0].broken:
            await asyncio.sleep(0.001)
    await world.pool.links[0].crash()
    assert len(await asyncio.wait_for(coming, 5)) == 3
    assert world.witness.events[-2:] == ["swap failed b", "loaded b"]
    assert await world.ask("a")
    assert world.manager.entries["a"].failures == world.manager.entries["b"].failures == []


async def test_a_twin_that_dies_before_its_engine_is_handed_on_is_a_load(world: World) -> None:
    world.manager.budget = 250
    world.manager.entries["b"].needed = 180
    await world.ask("a")
    await world.ask("c")
    ending = asyncio.Event()
    end = world.pool.links[1].end

    async def slowly(grace: float = 0.0, cause: Cause | None = None) -> None:
        await ending.wait()
        await end(grace, cause)

    world.pool.links[1].end = slowly  # type: ignore[method-assign]
    coming = asyncio.create_task(world.ask("b"))
    await reached(world, "a", ModelState.DRAINING)
    await world.pool.links[0].end(cause=Cause("killed", "SIGKILL"))
    ending.set()
    assert len(await asyncio.wait_for(coming, 5)) == 3
    assert "died a killed" in world.witness.events
    assert "swapped b" not in world.witness.events
    assert world.manager.entries["b"].twin == "alike", "it did not fail"


async def test_adapters_on_their_way_arrive_before_the_engine_is_handed_on(world: World) -> None:
    places = {"adapters": {"device": 2, "host": 4, "max_rank": 8}}
    for name in "ab":
        wanted = Recipe.model_validate({**recipe(name).model_dump(mode="json"), "memory": places})
        entry = world.manager.entries[name]
        entry.queue = world.queues[name] = ModelQueue(
            wanted, Bounds(100), lambda entry=entry: world.manager.want(entry),  # type: ignore[misc]
            lambda entry=entry: world.manager.released(entry),  # type: ignore[misc]
        )  # fmt: skip
    await world.ask("a")
    adapter = ref("a")
    async with await world.queues["a"].acquire(adapter):
        pass
    engine = world.pool.engines[0]
    assert engine.places == {adapter.digest}
    await world.ask("b")
    assert engine.swaps == ["b"]
    assert engine.places == set()
    async with await world.queues["b"].acquire(adapter):
        assert engine.places == {adapter.digest}, "staged and placed anew, for the other model"
