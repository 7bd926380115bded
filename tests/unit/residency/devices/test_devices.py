"""Several devices with a budget each, here halves of a CPU."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import DoesNotFit
from registry.recipes.definition import Parallel
from runtime.config.budgets import DeviceBudget
from runtime.config.device import Device, HostMemory, detect
from runtime.residency.policy import Need, Resident, Snapshot, plan
from runtime.residency.states import ModelState
from runtime.residency.updates import RecipeExchange, RecipeExchanger
from runtime.slots.link import Cause
from tests.unit.residency.scripted import World, in_use
from tests.unit.residency.test_policy import NOW, resident

HALVES = (DeviceBudget("cpu:0", 100), DeviceBudget("cpu:1", 100))


def test_a_cpu_as_two_devices_has_half_the_budget_on_each() -> None:
    halves = detect("cpu:2", 850).budgets
    assert [(half.device, half.bytes) for half in halves] == [("cpu:0", 425), ("cpu:1", 425)]
    assert {half.engine_device for half in halves} == {"cpu"}
    assert [half.bytes for half in detect("cpu:2", [500, 300]).budgets] == [500, 300]
    assert Device("cuda", "cuda:0", "GPU", 1000, 850).budgets == (DeviceBudget("cuda:0", 850, "GPU", 1000),)


def test_parts_of_a_cpu_have_separate_cores_if_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 1, 2, 5, 6})
    assert [part.cores for part in detect("cpu:2", 100).budgets] == [(1, 2), (5, 6)]
    assert {part.cores for part in detect("cpu:6", 100).budgets} == {()}
    assert detect("cpu", 100).budgets[0].cores == ()


def test_there_must_be_as_many_budgets_as_devices() -> None:
    with pytest.raises(RuntimeError, match="3 sizes for 2 devices"):
        detect("cpu:2", [1, 2, 3])


def test_a_model_larger_than_each_device_is_impossible() -> None:
    result = plan(Snapshot(HALVES, (), 1, NOW), Need("big", 150, 1.0, NOW))
    assert result.verdict == "impossible"
    assert (result.budget, result.victims) == (100, ())


def test_a_device_with_room_is_used_before_anything_is_evicted() -> None:
    result = plan(Snapshot(HALVES, (resident("a", devices=("cpu:0",)),), 1, NOW), Need("new", 100, 1.0, NOW))
    assert (result.verdict, result.devices, result.victims) == ("load", ("cpu:1",), ())


def test_victims_are_on_the_same_device() -> None:
    """The free memory of both devices would be enough, but it does not add up."""
    both = (resident("a", devices=("cpu:0",), bytes=60, last_used=0.0), resident("b", devices=("cpu:1",), bytes=90))
    result = plan(Snapshot(HALVES, both, 1, NOW), Need("new", 70, 1.0, NOW))
    assert (result.devices, [v.id for v in result.victims]) == (("cpu:0",), ["a"])


def test_a_wake_stays_on_its_device() -> None:
    own = resident("new", state=ModelState.ASLEEP, devices=("cpu:0",), bytes=5, host=60)
    other = resident("a", devices=("cpu:0",), bytes=90)
    result = plan(Snapshot(HALVES, (own, other), 0, NOW), Need("new", 100, 1.0, NOW, host=60))
    assert (result.verdict, result.devices, [v.id for v in result.victims]) == ("wake", ("cpu:0",), ["a"])


def test_a_victim_for_a_slot_may_be_on_another_device() -> None:
    pinned = resident("a", devices=("cpu:0",), bytes=30, pinned=True)
    result = plan(
        Snapshot(HALVES, (pinned, resident("b", devices=("cpu:1",), bytes=90)), 0, NOW), Need("new", 50, 1.0, NOW)
    )
    assert result.verdict == "load"
    assert [v.id for v in result.victims] == ["b"], "for its slot, which may be on any device"


sizes = st.integers(1, 120)
anybody = st.builds(
    resident,
    name=st.uuids().map(str),
    devices=st.sampled_from([("cpu:0",), ("cpu:1",), ("cpu:2",)]),
    bytes=st.integers(1, 60),
    pinned=st.booleans(),
    leases=st.integers(0, 2),
    last_used=st.floats(0, NOW),
)


@given(st.lists(sizes, min_size=3, max_size=3), st.lists(anybody, max_size=6), sizes, st.integers(0, 2))
def test_a_load_fits_its_device_once_its_victims_have_left(
    budgets: list[int], them: list[Resident], size: int, slots: int
) -> None:
    devices = tuple(DeviceBudget(f"cpu:{number}", budget) for number, budget in enumerate(budgets))
    result = plan(Snapshot(devices, tuple(them), slots, NOW), Need("new", size, 1.0, 0.0))
    gone = {victim.id for victim in result.victims}
    if result.verdict == "load":
        used_bytes = sum(r.bytes for r in them if r.devices == result.devices and r.id not in gone)
        assert used_bytes + size <= next(b.bytes for b in devices if result.devices == (b.device,))
        assert slots + len(gone) >= 1
        if slots:
            assert all(r.devices == result.devices for r in them if r.id in gone)
    if result.verdict == "impossible":
        for budget in devices:
            assert sum(r.bytes for r in them if r.devices == (budget.device,) and r.pinned) + size > budget.bytes


async def test_models_are_loaded_on_both_devices_and_replaced_on_their_own(tmp_path: Path) -> None:
    """Each model fills one half."""
    world = World(tmp_path, "abc", budget=200, parts=2)
    try:
        async with asyncio.timeout(200), in_use(world, "b"):
            await world.ask("a")
            entries = world.manager.entries
            assert {entries["a"].devices, entries["b"].devices} == {("cpu:0",), ("cpu:1",)}
            freed = entries["a"].devices
            await world.ask("c")
            assert world.witness.events[-2:] == ["evicted a", "loaded c"]
            assert entries["c"].devices == freed
            assert world.manager.table.used_bytes(device=freed[0]) == 100
            assert world.manager.table.used_bytes() == 200
    finally:
        await world.manager.close()
        await world.pool.close()


async def test_an_engine_on_a_part_of_the_cpu_gets_the_cpu(tmp_path: Path) -> None:
    world = World(tmp_path, "ab", budget=200, parts=2)
    for name in "ab":
        await world.ask(name)
    assert [engine.device for engine in world.pool.engines] == ["cpu", "cpu"]
    await world.manager.close()
    await world.pool.close()


class LosableMemory(HostMemory):
    """A device whose loss is noticed when its memory is read, as on a GPU."""

    fault = ""

    async def used(self) -> None:
        self.lost = self.fault


async def test_models_of_a_lost_device_are_loaded_on_another(tmp_path: Path) -> None:
    world = World(tmp_path, "abc", budget=200, parts=2)
    try:
        async with asyncio.timeout(200):
            await world.ask("a")
            entry = world.manager.entries["a"]
            (gone,), memory = entry.devices, LosableMemory()
            memory.fault = "GPU is lost"
            world.manager.table.memories = {**world.manager.table.memories, gone: memory}
            await world.manager.watcher.look_at_devices()
            while not entry.deaths or entry.state is not ModelState.READY:
                await world.manager.table.change()
            assert entry.devices != (gone,)
            assert "died a device_lost" in world.witness.events
            assert entry.failures[0].cause.code == "device_lost"
            assert "GPU is lost" in str(entry.failures[0].cause)
            await world.ask("b")
            assert world.manager.entries["b"].devices == entry.devices, (
                "a model is evicted, since nothing is loaded on a lost device"
            )
            memory.fault = ""
            await world.manager.watcher.look_at_devices()
            await world.ask("c")
            assert world.manager.entries["c"].devices == (gone,)
    finally:
        await world.manager.close()
        await world.pool.close()


async def test_a_model_that_waits_is_loaded_on_a_device_that_returns(tmp_path: Path) -> None:
    world = World(tmp_path, "ab", budget=200, parts=2)
    world.manager.patience = 1000.0
    table, memory = world.manager.table, HostMemory()
    async with asyncio.timeout(200), in_use(world, "a"):
        (lost,) = set(table.memories) - set(world.manager.entries["a"].devices)
        memory.lost = "GPU is lost"
        table.memories = {**table.memories, lost: memory}
        await world.manager.watcher.look_at_devices()
        waiting = asyncio.create_task(world.ask("b"))
        while (entry := world.manager.entries["b"]).requested_since is None:
            await asyncio.sleep(0)
        assert entry.state is ModelState.ABSENT
        memory.lost = ""
        await world.manager.watcher.look_at_devices()
        assert await waiting
        assert entry.devices == (lost,)
    await world.manager.close()
    await world.pool.close()


async def test_an_engine_that_cannot_be_ended_on_a_lost_device_delays_no_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may keep a killed process forever."""
    world = World(tmp_path, "a", budget=100)

    async def never_gone(cause: Cause | None = None) -> None:
        await asyncio.Event().wait()

    await world.ask("a")
    with monkeypatch.context() as patch:
        patch.setattr(world.pool.links[0], "end", never_gone)
        patch.setattr(world.memory, "lost", "GPU is lost")
        async with asyncio.timeout(5):
            await world.manager.watcher.look_at_devices()
    await world.manager.close()
    await world.pool.close()


async def test_a_model_counts_on_its_devices_until_it_leaves_them_for_a_recipe_with_more(tmp_path: Path) -> None:
    world = World(tmp_path, "ab", budget=200, parts=2)
    manager = world.manager
    manager.exchanger = RecipeExchanger(manager.table, manager.drainer, patience=0.0)
    entry = manager.get("a")
    async with in_use(world, "a"):
        spread = entry.recipe.model_copy(update={"version": 2, "parallel": Parallel(tensor=2)})
        manager.exchanger.start(entry, RecipeExchange(spread, lambda _: None))
        async with asyncio.timeout(200):
            while entry.state is not ModelState.DRAINING:
                await manager.table.change()
        (device,) = entry.devices
        assert manager.table.used_bytes(device=device) == 100
        resident = next(one for one in manager.table.snapshot().residents if one.id == "a")
        assert resident.bytes == 100
    await manager.close()
    await world.pool.close()


async def test_an_error_says_that_no_device_is_left(tmp_path: Path) -> None:
    world = World(tmp_path, "a", budget=100)
    world.manager.table.lost["cpu:0"] = "GPU is lost"
    with pytest.raises(DoesNotFit, match="device is gone"):
        await world.ask("a")
    assert world.manager.table.used_bytes() == 0
    await world.manager.close()
    await world.pool.close()
