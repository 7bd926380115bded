"""Models that fall asleep and wake, with scripted engines in real slots: states, budgets, adapters, faults."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models.messages import AdapterRef, Held
from registry.errors import DoesNotFit, EngineFailed
from registry.recipe import Recipe
from runtime.death import Cause
from runtime.residency.states import ModelState
from runtime.scheduler import Bounds, ModelQueue
from tests.fakes.engine import FakeEngine
from tests.unit.runtime.test_residency_manager import World, recipe

ASLEEP = Held(device_bytes=5, host_bytes=90)


def can_sleep() -> FakeEngine:
    return FakeEngine(asleep=ASLEEP)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Each of 100 bytes; the device has room for one of them, the host for two that sleep."""
    world = World(tmp_path, "abc", budget=115, host_budget=180)
    world.pool.make = can_sleep
    yield world
    await world.manager.close()
    await world.pool.close()


def held(world: World, name: str) -> tuple[int, int]:
    entry = world.manager.entries[name]
    return entry.bytes, entry.host_bytes


def with_adapters(world: World) -> ModelQueue:
    """Give model a two places for adapters."""
    places = {"adapters": {"device": 2, "host": 4, "max_rank": 8}}
    wanted = Recipe.model_validate({**recipe("a").model_dump(mode="json"), "memory": places})
    entry = world.manager.entries["a"]
    queue = ModelQueue(
        wanted, Bounds(100), lambda: world.manager.want(entry), lambda: world.manager.released(entry)
    )  # fmt: skip
    entry.queue = world.queues["a"] = queue
    return queue


async def reached(world: World, name: str, state: ModelState) -> None:
    async with asyncio.timeout(5):
        while world.state(name) is not state:
            await asyncio.sleep(0.001)


async def test_a_victim_sleeps_and_wakes_in_its_slot(world: World) -> None:
    for name in "aba":
        assert await world.ask(name)
    assert world.witness.events == ["loaded a", "slept a", "loaded b", "slept b", "woke a"]
    assert len(world.pool.links) == 2
    assert (held(world, "a"), held(world, "b")) == ((100, 90), (5, 90))
    assert world.manager.entries["a"].wakes == 1
    assert world.manager.entries["a"].tier.value == "device"
    assert world.manager.entries["b"].tier.value == "host"


async def test_host_memory_for_a_third_comes_from_the_one_that_slept_longest(world: World) -> None:
    world.manager.entries["c"].host_needed = 1
    for name in "abc":
        await world.ask(name)
    assert sorted(world.witness.events[-3:]) == ["evicted a", "loaded c", "slept b"]
    assert held(world, "a") == (0, 0)
    assert world.manager.held_on_host() <= world.manager.host_budget
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


async def test_who_asks_while_it_falls_asleep_is_served_after_the_wake(world: World) -> None:
    await world.ask("a")
    engine = world.pool.engines[0]
    engine.sleep_gate.clear()
    other = asyncio.create_task(world.ask("b"))
    await reached(world, "a", ModelState.DRAINING)
    asked = asyncio.create_task(world.ask("a"))
    await asyncio.sleep(0.01)
    assert not other.done(), "its memory is not back yet"
    engine.sleep_gate.set()
    assert len(await asked) == 3
    assert await other
    assert "woke a" in world.witness.events


async def test_a_slot_that_is_lacking_is_taken_from_the_sleeper(world: World) -> None:
    world.pool.free = world.pool.size = 2
    for name in "abc":
        await world.ask(name)
    assert "evicted a" in world.witness.events
    assert [world.state(name) for name in "abc"] == [ModelState.ABSENT, ModelState.ASLEEP, ModelState.READY]


async def test_one_that_dies_asleep_is_on_disk_and_nobody_backs_off(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    await world.pool.links[0].end(cause=Cause("killed", "SIGKILL"))
    await reached(world, "a", ModelState.ABSENT)
    entry = world.manager.entries["a"]
    assert (entry.failures, held(world, "a")) == ([], (0, 0))
    assert "died a killed" in world.witness.events
    await asyncio.sleep(0.01)
    assert world.state("a") is ModelState.ABSENT, "nobody wants it: it is not brought back"
    assert await world.ask("a")


async def test_one_that_dies_while_it_falls_asleep_makes_room_all_the_same(world: World) -> None:
    await world.ask("a")
    world.pool.engines[0].sleep_gate.clear()
    other = asyncio.create_task(world.ask("b"))
    await reached(world, "a", ModelState.DRAINING)
    await asyncio.sleep(0.01)
    await world.pool.links[0].end(cause=Cause("killed", "SIGKILL"))
    assert await asyncio.wait_for(other, 5)
    assert world.state("a") is ModelState.ABSENT
    assert world.manager.entries["a"].failures == []


async def test_one_that_cannot_fall_asleep_ends_and_does_not_try_again(world: World) -> None:
    world.pool.make = lambda: FakeEngine(asleep=ASLEEP, sleep_error=EngineFailed("no"))
    for name in "aba":
        assert await world.ask(name)
    assert world.witness.events[:4] == ["loaded a", "sleep failed a", "evicted a", "loaded b"]
    assert world.manager.entries["a"].asleep is None


async def test_one_that_woke_wrong_is_ended_and_loaded_afresh_before_it_answers(world: World) -> None:
    made = iter([FakeEngine(asleep=ASLEEP, wake_error=EngineFailed("other weights")), can_sleep(), can_sleep()])
    world.pool.make = lambda: next(made)
    await world.ask("a")
    await world.ask("b")
    assert len(await world.ask("a")) == 3
    assert world.pool.engines[0].answered == [("call", "a")], "it answered once, before its sleep"
    assert world.witness.events[-3:] == ["slept b", "wake failed a", "loaded a"]
    assert world.manager.entries["a"].asleep is None


async def test_one_that_dies_while_it_wakes_is_loaded_afresh(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    world.pool.engines[0].sleep_gate.clear()
    asked = asyncio.create_task(world.ask("a"))
    await reached(world, "a", ModelState.LOADING)
    while (progress := world.manager.entries["a"].progress) is None or progress.phase != "waking":
        await asyncio.sleep(0.001)
    await world.pool.links[0].crash()
    assert len(await asyncio.wait_for(asked, 5)) == 3
    assert world.manager.entries["a"].loads == 2


async def test_one_that_dies_before_there_is_room_for_its_wake_is_loaded_and_no_other_slot_is_touched(
    world: World,
) -> None:
    await world.ask("a")
    await world.ask("b")
    other = world.pool.engines[1]
    other.gate.clear()
    running = asyncio.create_task(world.ask("b"))
    while not other.running:
        await asyncio.sleep(0.001)
    asked = asyncio.create_task(world.ask("a"))
    await reached(world, "a", ModelState.LOADING)
    assert held(world, "a") == (5, 90), "it waits for b, and holds no more than asleep"
    await world.pool.links[0].crash()
    while world.manager.entries["a"].claim:
        await asyncio.sleep(0.001)
    other.gate.set()
    assert len(await running) == 3
    assert len(await asyncio.wait_for(asked, 5)) == 3
    assert world.witness.events == ["loaded a", "slept a", "loaded b", "died a ended", "slept b", "loaded a"]
    assert [link.ended for link in world.pool.links] == [0, 0, 0]
    assert world.manager.entries["a"].asleep is not None


async def test_one_that_gives_too_little_back_is_ended_so_that_nobody_waits_for_ever(world: World) -> None:
    class Liar(FakeEngine):
        async def sleep(self) -> Held:
            await super().sleep()
            return Held(device_bytes=95, host_bytes=90)

    world.pool.make = lambda: Liar(asleep=ASLEEP)
    await world.ask("a")
    assert await asyncio.wait_for(world.ask("b"), 5)
    assert world.witness.events == ["loaded a", "slept a", "evicted a", "loaded b"]
    await asyncio.wait_for(world.ask("a"), 5)
    assert world.manager.entries["a"].asleep is None, "measured: a sleep of this model is worth nothing"


async def test_unload_by_hand_ends_a_sleeping_model(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    await world.manager.unload(world.manager.entries["a"])
    assert world.state("a") is ModelState.ABSENT
    await world.manager.unload(world.manager.entries["b"])
    assert "slept b" not in world.witness.events
    assert world.manager.held() == world.manager.held_on_host() == 0


async def test_load_by_hand_wakes(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    await world.manager.load(world.manager.entries["a"])
    assert world.state("a") is ModelState.READY
    world.manager.entries["a"].pinned = True
    with pytest.raises(DoesNotFit):
        await asyncio.wait_for(world.manager.load(world.manager.entries["b"]), 5)


async def test_an_idle_one_sleeps_and_ends_when_it_is_idle_for_as_long_again(world: World) -> None:
    entry = world.manager.entries["a"]
    entry.recipe = recipe("a", idle_timeout=0.05)
    await world.ask("a")
    watching = asyncio.create_task(world.manager.watch(heartbeat=0.01, hung_after=5))
    await reached(world, "a", ModelState.ASLEEP)
    asleep_at = entry.asleep_since
    await reached(world, "a", ModelState.ABSENT)
    assert entry.clock() - asleep_at >= 0.05
    watching.cancel()
    assert world.witness.events == ["loaded a", "slept a", "evicted a"]


async def test_a_sleeping_engine_that_does_not_answer_is_ended(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    world.pool.engines[0].ping_gate.clear()
    watching = asyncio.create_task(world.manager.watch(heartbeat=0.01, hung_after=0.05))
    await reached(world, "a", ModelState.ABSENT)
    watching.cancel()
    assert "died a engine_hung" in world.witness.events
    assert world.state("b") is ModelState.READY


async def test_a_recipe_forbids_or_forces_it(world: World) -> None:
    world.manager.entries["a"].recipe = recipe("a", sleep="never")
    await world.ask("a")
    await world.ask("b")
    assert world.witness.events == ["loaded a", "evicted a", "loaded b"]
    entry = world.manager.entries["b"]
    entry.slept = Held(device_bytes=60, host_bytes=90)
    assert entry.asleep is None, "it frees less than half"
    entry.slept = Held(device_bytes=5, host_bytes=0)
    assert entry.asleep is None, "nothing stays in memory: a wake reads from disk, as a load does"
    entry.recipe = recipe("b", sleep="always")
    assert entry.asleep is not None


async def test_memory_that_is_not_seen_to_be_back_is_not_given_away(world: World) -> None:
    seen = asyncio.Event()

    async def back(freed: int) -> None:
        assert freed == 95
        await seen.wait()

    await world.ask("a")
    world.manager._memory_back = back
    other = asyncio.create_task(world.ask("b"))
    while not world.pool.engines[0].sleeps:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert (world.state("a"), held(world, "a")[0]) == (ModelState.DRAINING, 100)
    assert len(world.pool.engines) == 1
    seen.set()
    assert await other


async def test_two_that_fall_asleep_into_room_for_one_do_not_wait_for_each_other(world: World) -> None:
    world.manager.budget, world.manager.host_budget = 250, 100
    await world.ask("a")
    await world.ask("b")
    for name in "ab":
        world.manager._dismiss(world.manager.entries[name], sleep=True)
    async with asyncio.timeout(5):
        await asyncio.gather(*(world.manager._leave(world.manager.entries[name], "test") for name in "ab"))
    assert sorted(world.state(name).value for name in "ab") == ["absent", "asleep"]


async def test_adapters_are_brought_in_again_after_a_wake(tmp_path: Path) -> None:
    world = World(tmp_path, "ab", budget=115)
    world.pool.make = can_sleep
    entry = world.manager.entries["a"]
    queue = with_adapters(world)
    adapter = AdapterRef(digest="sha256:" + "1" * 64, path="x", rank=8, bytes=1)
    for turn in range(2):
        async with await queue.acquire(adapter):
            engine = world.pool.engines[0]
            assert engine.places == {adapter.digest}
            assert engine.naps == turn
        assert queue.policy.status(adapter.digest).tier == "device"
        await world.ask("b")
        assert entry.state is ModelState.ASLEEP
        assert engine.places == set()
        assert queue.policy.status(adapter.digest).tier == "disk"
    assert queue.policy.status(adapter.digest).placements == 2
    await world.manager.close()
    await world.pool.close()


async def test_an_adapter_on_its_way_arrives_before_the_engine_sleeps(tmp_path: Path) -> None:
    world = World(tmp_path, "ab", budget=115)
    world.pool.make = can_sleep
    queue = with_adapters(world)
    checked = asyncio.Event()

    class Slow:
        async def check(self, digest: str) -> None:
            await checked.wait()

        def note(self, step: str, seconds: float, outcome: str) -> None:
            return

        def probes(self, digest: str) -> tuple[()]:
            return ()

    await world.ask("a")
    queue.effects._registry = Slow()  # type: ignore[assignment]
    adapter = AdapterRef(digest="sha256:" + "2" * 64, path="x", rank=8, bytes=1)
    asked = asyncio.create_task(queue.acquire(adapter))
    other = asyncio.create_task(world.ask("b"))
    await reached(world, "a", ModelState.DRAINING)
    await asyncio.sleep(0.01)
    assert world.pool.engines[0].naps == 0, "a staging is under way"
    checked.set()
    assert await other
    (await asked).release()
    assert world.pool.engines[0].places == {adapter.digest}
    await world.manager.close()
    await world.pool.close()


async def test_room_for_staged_adapters_is_kept_awake_and_given_away_asleep(tmp_path: Path) -> None:
    world = World(tmp_path, "ab", budget=115, host_budget=240)
    world.pool.make = can_sleep
    world.manager.entries["a"].host_adapters = 50
    await world.ask("a")
    assert held(world, "a") == (100, 51)
    await world.ask("b")
    assert held(world, "a") == (5, 90)
    assert world.manager.plan(world.manager.entries["a"]).host_needed == 140
    await world.ask("a")
    assert held(world, "a") == (100, 140)
    assert held(world, "b") == (5, 90)
    await world.manager.close()
    await world.pool.close()
