"""The manager of the model table, with scripted engines on real sockets."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from models.messages import AdapterRef, MemoryFootprint
from registry.errors import Conflict, DoesNotFit, QueueFull, Unavailable
from registry.recipes.definition import Recipe
from runtime.config.budgets import DeviceBudget
from runtime.residency.entry import ModelEntry
from runtime.residency.states import ModelState
from tests.eventually import PATIENCE
from tests.fakes.engine import FakeEngine
from tests.unit.residency.scripted import World, in_use, recipe


async def test_a_request_loads_its_model(world: World) -> None:
    assert (await world.ask("a"))[0] == b"data: 0 a\n\n"
    assert world.state("a") is ModelState.READY


async def test_one_load_serves_all_waiters(world: World) -> None:
    answers = await asyncio.gather(*(world.ask("a") for _ in range(4)))
    assert len(answers) == 4
    assert world.witness.events == ["loaded a"]
    assert world.pool.engines[0].most_running <= 2


async def test_a_waiter_that_leaves_does_not_cancel_the_load(world: World) -> None:
    world.pool.make = lambda: (e := FakeEngine(), e.load_gate.clear())[0]
    leaver, stayer = asyncio.create_task(world.ask("a")), asyncio.create_task(world.ask("a"))
    while not world.pool.engines:
        await asyncio.sleep(0.001)
    leaver.cancel()
    await asyncio.sleep(0.01)
    world.pool.engines[0].load_gate.set()
    assert await stayer
    assert world.witness.events == ["loaded a"]


async def test_the_least_recently_used_model_is_evicted(world: World) -> None:
    for name in "abac":
        await world.ask(name)
    assert world.witness.events == ["loaded a", "loaded b", "evicted b", "loaded c"]
    assert world.state("b") is ModelState.ABSENT


async def test_later_requests_leave_a_model_its_place_in_the_line(world: World) -> None:
    entry = world.manager.entries["c"]
    async with in_use(world, "a"), in_use(world, "b"):
        first = asyncio.create_task(world.ask("c"))
        while (since := entry.requested_since) is None:
            await asyncio.sleep(0)
        second = asyncio.create_task(world.ask("c"))
        while world.queues["c"].waiting < 2:
            await asyncio.sleep(0)
        assert entry.requested_since == since
    assert await asyncio.gather(first, second)


async def test_an_evicted_model_has_no_adapter_in_a_place(world: World) -> None:
    entry, queue = world.manager.entries["a"], world.queues["a"]
    places = {"memory": {"adapters": {"device": 1, "host": 1}}}
    entry.recipe = Recipe.model_validate({**recipe("a").model_dump(mode="json"), **places})
    queue.change(entry.recipe)
    await world.ask("a")
    async with await queue.acquire(AdapterRef(digest="d", path="d", rank=8, bytes=1)):
        while queue.adapter_status("d").tier != "device":
            await asyncio.sleep(0.001)
    for name in "bc":
        await world.ask(name)
    assert world.state("a") is ModelState.ABSENT
    assert queue.adapter_status("d").tier == "disk"


async def test_the_least_recently_used_unpinned_sleeper_on_the_devices_ends_for_room(tmp_path: Path) -> None:
    world = World(tmp_path, "abcd", budget=200, parts=2)
    a, b, c, d = world.manager.entries.values()
    for entry, device, used in ((a, "cpu:0", 1.0), (b, "cpu:1", 2.0), (c, "cpu:0", 3.0)):
        entry.state, entry.devices, entry.last_used, entry.bytes = ModelState.ASLEEP, (device,), used, 5
    a.pinned = True
    d.state, d.devices = ModelState.LOADING, ("cpu:0",)
    assert world.manager.loader._sleeper_to_end(d) is c
    a.bytes = c.bytes = 0  # so that only host memory may be missing
    assert world.manager.loader._sleeper_to_end(d) is b
    b.pinned = c.pinned = True
    assert world.manager.loader._sleeper_to_end(d) is None


async def test_a_copy_waits_for_host_memory_of_models_that_leave(tmp_path: Path) -> None:
    world = World(tmp_path, "ab", host_budget=100)
    leaving, sleeper = world.manager.entries.values()
    table, has_room = world.manager.table, world.manager.drainer._host_has_room
    leaving.host_bytes = sleeper.host_bytes = 50
    for state, falls_asleep in ((ModelState.READY, False), (ModelState.DRAINING, True)):
        leaving.state, leaving.falling_asleep = state, falls_asleep
        assert await has_room(sleeper, 50)
        assert not await has_room(sleeper, 51)
    for state in (ModelState.DRAINING, ModelState.UNLOADING):
        leaving.state, leaving.falling_asleep, leaving.host_bytes = state, False, 50
        waiting = asyncio.create_task(has_room(sleeper, 51))
        await asyncio.sleep(0)
        assert not waiting.done()
        leaving.host_bytes = 0
        table.note_change()
        assert await waiting


async def test_a_slot_is_added_before_a_model_is_evicted_for_one(tmp_path: Path) -> None:
    """The load begins once the slot has been added."""
    world = World(tmp_path, "abc", budget=1000)
    world.pool.free = world.pool.size = 2
    await world.ask("a")
    await world.ask("b")
    world.pool.addable = 1
    answer = asyncio.create_task(world.ask("c"))
    while not world.pool.requested:
        await asyncio.sleep(0.001)
    assert world.state("c") is ModelState.ABSENT
    world.pool.free, world.pool.addable = 1, 0
    world.manager.decide()
    assert await answer
    assert world.witness.events == ["loaded a", "loaded b", "loaded c"]
    await world.manager.close()
    await world.pool.close()


async def test_a_model_is_evicted_if_no_slot_can_be_added(tmp_path: Path) -> None:
    world = World(tmp_path, "abc", budget=1000)
    world.pool.free = world.pool.size = 2
    for name in "ab":
        await world.ask(name)
    world.pool.addable = 1
    answer = asyncio.create_task(world.ask("c"))
    while not world.pool.requested:
        await asyncio.sleep(0.001)
    world.pool.addable = 0
    world.manager.decide()
    assert await answer
    assert world.witness.events == ["loaded a", "loaded b", "evicted a", "loaded c"]
    await world.manager.close()
    await world.pool.close()


async def test_a_model_whose_request_waits_for_an_adapter_is_not_idle(world: World) -> None:
    """`a` was used least recently, and nothing runs on it."""

    class Slow(FakeEngine):
        async def stage(self, adapter: AdapterRef) -> None:
            await self.gate.wait()
            await super().stage(adapter)

    a, queue = world.manager.entries["a"], world.queues["a"]
    a.recipe = Recipe.model_validate(
        {**recipe("a", idle_timeout=1).model_dump(mode="json"), "memory": {"adapters": {"device": 1, "host": 1}}}
    )
    queue.change(a.recipe)
    world.manager.patience = 1000.0
    world.pool.make = Slow
    await world.ask("a")
    await world.ask("b")
    world.pool.engines[0].gate.clear()
    waits = asyncio.create_task(queue.acquire(AdapterRef(digest="d", path="d", rank=8, bytes=1)))
    while not queue.waiting:
        await asyncio.sleep(0.001)
    a.last_used -= 100
    assert not world.manager.watcher._is_idle(a)
    assert await world.ask("c")
    assert (world.state("a"), world.state("b")) == (ModelState.READY, ModelState.ABSENT)
    world.pool.engines[0].gate.set()
    (await waits).release()
    a.last_used -= 100
    assert world.manager.watcher._is_idle(a)


async def test_the_first_waiting_load_is_never_overtaken(tmp_path: Path) -> None:
    """`c` needs all of the budget and waits for busy `a`, while `b`, which was requested later, would fit."""
    world = World(tmp_path, "abc")
    world.manager.entries["c"].needed = 250
    async with in_use(world, "a"):
        line = [asyncio.create_task(world.ask(name)) for name in "cb"]
        while world.state("a") is not ModelState.DRAINING:
            await asyncio.sleep(0.001)
    await asyncio.gather(*line)
    assert world.witness.events[:3] == ["loaded a", "evicted a", "loaded c"]
    await world.manager.close()
    await world.pool.close()


async def test_loads_are_served_in_the_order_of_their_requests(tmp_path: Path) -> None:
    world = World(tmp_path, "abc", budget=100)
    async with in_use(world, "a"):
        line = [asyncio.create_task(world.ask(name)) for name in "cb"]
        while world.state("a") is not ModelState.DRAINING:
            await asyncio.sleep(0.001)
    await asyncio.gather(*line)
    assert world.witness.events == ["loaded a", "evicted a", "loaded c", "evicted c", "loaded b"]
    await world.manager.close()
    await world.pool.close()


async def test_a_request_for_a_leaving_model_keeps_its_position(tmp_path: Path) -> None:
    world = World(tmp_path, "abc", budget=100)
    async with in_use(world, "a"):
        line = [asyncio.create_task(world.ask("b"))]
        while world.state("a") is not ModelState.DRAINING:
            await asyncio.sleep(0.001)
        for name in "ac":
            line.append(asyncio.create_task(world.ask(name)))
            while not world.queues[name].waiting:
                await asyncio.sleep(0.001)
    await asyncio.gather(*line)
    assert [event for event in world.witness.events if "loaded" in event] == [f"loaded {name}" for name in "abac"]
    await world.manager.close()
    await world.pool.close()


async def test_a_busy_victim_finishes_its_requests_first(world: World) -> None:
    await world.ask("b")
    await world.ask("a")
    a, b = world.pool.engines[1], world.pool.engines[0]
    a.gate.clear()
    b.gate.clear()
    running = [asyncio.create_task(world.ask("a")), asyncio.create_task(world.ask("b"))]
    while not (a.running and b.running):
        await asyncio.sleep(0.001)
    newcomer = asyncio.create_task(world.ask("c"))
    while ModelState.DRAINING not in (world.state("a"), world.state("b")):
        await asyncio.sleep(0.001)
    assert not newcomer.done()
    a.gate.set()
    b.gate.set()
    assert [len(answer) for answer in await asyncio.gather(*running)] == [3, 3]
    assert await newcomer


async def test_the_drain_deadline_ends_a_stream_with_an_error(tmp_path: Path) -> None:
    world = World(tmp_path, "ab", budget=150)
    entry = world.manager.entries["a"]
    entry.recipe = recipe("a", drain_deadline=0.05)
    await world.ask("a")
    engine = world.pool.engines[0]
    engine.gate.clear()
    lease = await world.queues["a"].acquire(None)
    newcomer = asyncio.create_task(world.ask("b"))
    reason = await asyncio.wait_for(lease.ticket.aborted, 200)  # type: ignore[arg-type]
    assert reason.code == "drained"
    lease.release()
    assert await newcomer
    await world.manager.close()
    await world.pool.close()


@pytest.mark.parametrize("on_cpu", [True, False])
async def test_a_load_takes_only_the_memory_it_needs_from_prewarmed_slots(tmp_path: Path, on_cpu: bool) -> None:
    """Prewarmed processes use host memory, of which a load that fills a GPU needs little."""
    rooms: list[int] = []

    async def cool(room: int, keep: str | None = None) -> None:
        rooms.append(room)

    world = World(tmp_path, "ab", budget=200, host_budget=1000)
    world.manager.table.counts_processes = on_cpu
    world.pool.cool = cool  # type: ignore[method-assign]
    for entry in world.manager.entries.values():
        entry.host_needed = 0 if on_cpu else 30
    world.pool.make = lambda: FakeEngine(asleep=None if on_cpu else MemoryFootprint(device_bytes=5, host_bytes=90))
    for name in "ab":
        await world.ask(name)
    assert rooms == ([100, 0] if on_cpu else [970, 969])
    await world.manager.close()
    await world.pool.close()


async def test_the_error_of_a_model_that_cannot_fit_has_its_size(world: World) -> None:
    world.manager.entries["a"].needed = 1000
    with pytest.raises(DoesNotFit, match="1000 B"):
        await world.ask("a")


async def test_an_explicit_load_that_cannot_fit_fails_at_once(world: World) -> None:
    entry = world.manager.entries["a"]
    entry.needed = 1000
    with pytest.raises(DoesNotFit, match="1000 B"):
        await asyncio.wait_for(world.manager.load(entry), 200)
    with pytest.raises(DoesNotFit, match="1000 B"):
        world.manager.begin_load(entry)
    world.manager.request_load(entry)
    with pytest.raises(DoesNotFit, match="1000 B"):
        world.manager.check_given_up(entry)


async def test_a_model_that_did_not_fit_is_served_as_soon_as_it_does(world: World) -> None:
    await world.ask("b")
    world.manager.entries["a"].needed = 200
    world.manager.pin(world.manager.entries["b"], True)
    for _ in range(2):
        with pytest.raises(DoesNotFit, match="unpin one"):
            await world.ask("a")
    world.manager.pin(world.manager.entries["b"], False)
    assert await world.ask("a"), "without a back-off"


@pytest.mark.parametrize("has_failed", [False, True])
async def test_an_unload_ends_the_wait_of_a_load_for_room(world: World, has_failed: bool) -> None:
    for name in "ab":
        await world.ask(name)
        world.manager.entries[name].recipe = recipe(name, min_resident=600)
    entry = world.manager.entries["c"]
    if has_failed:
        entry.state = ModelState.FAILED
    loading = asyncio.create_task(world.manager.load(entry))
    await asyncio.sleep(0)
    assert entry.requested_since is not None
    await world.manager.unload(entry)
    with pytest.raises(Conflict, match="was unloaded"):
        await loading
    await world.manager.unload(world.manager.entries["b"])
    assert entry.state is ModelState.ABSENT, "no request waits for it"


async def test_an_unload_waits_for_the_requests_that_waited_for_the_load(world: World) -> None:
    """The model used to leave before them, and to load again for the rest."""
    engine = FakeEngine()
    engine.load_gate.clear()
    world.pool.make = lambda: engine
    waiting = [asyncio.create_task(world.ask("a")) for _ in range(4)]  # only two may run at once
    while world.queues["a"].waiting < 4:
        await asyncio.sleep(0)
    unloading = asyncio.create_task(world.manager.unload(world.manager.get("a")))
    await asyncio.sleep(0)
    engine.load_gate.set()
    assert all(await asyncio.wait_for(asyncio.gather(*waiting), 200))
    await asyncio.wait_for(unloading, 200)
    assert world.witness.events == ["loaded a", "evicted a"]
    assert world.state("a") is ModelState.ABSENT


async def test_requests_that_are_cut_off_get_the_error(world: World) -> None:
    """Those of a model that would still load, too."""
    late = Unavailable("It stops.", code="shutting_down")
    async with in_use(world, "a"), await world.queues["a"].acquire(None) as lease:  # as many as may run at once
        world.pool.make = lambda: (e := FakeEngine(), e.load_gate.clear())[0]
        waiting = [asyncio.create_task(world.ask(name)) for name in "ab"]
        while not (world.queues["a"].waiting and world.state("b") is ModelState.LOADING):
            await asyncio.sleep(0)
        world.manager.cut_off(late)
        assert await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 200) == [late, late]
        assert lease.ticket.aborted.result() is late


async def test_the_number_of_waiting_requests_is_bounded(world: World) -> None:
    world.pool.make = lambda: (e := FakeEngine(), e.load_gate.clear())[0]
    waiting = [asyncio.create_task(world.ask("a")) for _ in range(4)]
    while world.queues["a"].waiting < 4:
        await asyncio.sleep(0)
    with pytest.raises(QueueFull) as full:
        await world.ask("a")
    assert full.value.retry_after is not None
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert world.queues["a"].waiting == 0


async def test_a_second_unload_waits_like_the_first_for_running_requests(world: World) -> None:
    entry = world.manager.get("a")
    await world.ask("a")
    async with in_use(world, "a"):
        unloads = [asyncio.create_task(world.manager.unload(entry)) for _ in range(2)]
        while entry.state is not ModelState.DRAINING:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert (world.pool.links[0].ended, entry.state) == (0, ModelState.DRAINING)
    await asyncio.gather(*unloads)
    assert (world.pool.links[0].ended, entry.state) == (1, ModelState.ABSENT)


async def test_pinned_models_stay_and_unload_needs_force(world: World) -> None:
    await world.ask("a")
    entry = world.manager.entries["a"]
    world.manager.pin(entry, True)
    await world.ask("b")
    await world.ask("c")
    assert "evicted a" not in world.witness.events
    with pytest.raises(Conflict):
        await world.manager.unload(entry)
    await world.manager.unload(entry, force=True)
    assert world.state("a") is ModelState.ABSENT
    world.manager.pin(entry, False)
    for name in "abc":
        await world.ask(name)
    assert world.state("a") is ModelState.ABSENT, "an unpinned model is evicted like others"


async def test_no_model_starves_under_a_hot_one(world: World) -> None:
    """The budget is for one model. Despite endless requests for `a`, `b` is served within patience + drain + load."""
    world.manager.table.budgets = (DeviceBudget("cpu:0", 150),)
    stop = asyncio.Event()

    async def hot() -> None:
        while not stop.is_set():
            await world.ask("a")

    hots = [asyncio.create_task(hot()) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert await asyncio.wait_for(world.ask("b"), 200)
    stop.set()
    await asyncio.gather(*hots)


async def test_a_model_in_use_is_not_idle_however_long_it_takes(world: World) -> None:
    entry, pinged = world.manager.entries["a"], asyncio.Event()
    entry.recipe = recipe("a", idle_timeout=60)
    async with in_use(world, "a"):
        entry.clock = lambda: time.monotonic() + 3600
        assert entry.link is not None
        entry.link.command = lambda *_: asyncio.sleep(0, pinged.set())  # type: ignore[method-assign]
        watching = asyncio.create_task(world.manager.watcher.watch(heartbeat=0.001, hung_after=30))
        await asyncio.wait_for(pinged.wait(), 200)
        assert world.state("a") is ModelState.READY
        watching.cancel()


async def test_plan_changes_nothing(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    plan = world.manager.plan(world.manager.entries["c"])
    assert [v.id for v in plan.victims] == ["a"]
    assert world.state("a") is ModelState.READY


async def test_missing_files_are_fetched_once_when_first_requested(world: World, tmp_path: Path) -> None:
    entry, other = world.manager.entries["a"], asyncio.Event()
    entry.path, fetched = None, []

    async def fetch(entry: ModelEntry, reported: Callable[[int, int | None], None]) -> None:
        fetched.append(entry.id)
        reported(1 << 20, 4 << 20)
        assert entry.progress is not None
        assert (entry.state, entry.progress.phase, entry.progress.fraction) == (ModelState.LOADING, "fetching", 0.25)
        await other.wait()
        entry.path = tmp_path

    world.manager.fetcher.fetch = fetch
    waiting = [asyncio.create_task(world.ask("a")) for _ in range(3)]
    assert await world.ask("b"), "a download delays no other model"
    other.set()
    assert all(await asyncio.gather(*waiting))
    assert fetched == ["a"]


async def test_a_failed_fetch_is_reported_and_repeated_later(world: World, tmp_path: Path) -> None:
    entry = world.manager.entries["a"]
    entry.path = None

    async def fetch(entry: ModelEntry, reported: Callable[[int, int | None], None]) -> None:
        raise Unavailable("The hub did not deliver.", code="hub_unavailable", retry_after=30)

    world.manager.fetcher.fetch = fetch
    with pytest.raises(Unavailable, match="did not deliver") as refused:
        await world.ask("a")
    assert refused.value.retry_after == 30
    assert world.state("a") is ModelState.FAILED
    with pytest.raises(Unavailable, match="next attempt"):
        await world.ask("a")

    async def succeed(entry: ModelEntry, reported: Callable[[int, int | None], None]) -> None:
        entry.path = tmp_path

    world.manager.fetcher.fetch = succeed
    await world.manager.fetch(entry)
    assert (world.state("a"), entry.failure) == (ModelState.ABSENT, None), "the failure is cleared"


async def test_an_unexpected_error_in_a_fetch_makes_it_fail(world: World) -> None:
    entry = world.manager.entries["a"]
    entry.path = None

    async def fetch(entry: ModelEntry, reported: Callable[[int, int | None], None]) -> None:
        raise OSError("No space left on device")

    world.manager.fetcher.fetch = fetch
    with pytest.raises(Unavailable, match="inside the server: OSError"):
        await world.ask("a")
    assert world.state("a") is ModelState.FAILED
    assert await world.ask("b"), "other models are not affected"


async def test_a_model_whose_last_waiter_leaves_makes_room_at_once(tmp_path: Path) -> None:
    """It waited for its adapter, and no other request would end and so cause a new decision."""
    world = World(tmp_path, budget=150)
    world.manager.patience = 1000.0
    entry, queue = world.manager.entries["a"], world.queues["a"]
    places = {"memory": {"adapters": {"device": 1, "host": 1}}}
    entry.recipe = Recipe.model_validate({**recipe("a").model_dump(mode="json"), **places})
    queue.change(entry.recipe)
    await world.ask("a")
    on_its_way = asyncio.Event()

    async def never(_: AdapterRef) -> None:
        on_its_way.set()
        await asyncio.Event().wait()

    world.pool.engines[0].stage = never  # type: ignore[method-assign]
    waiter = asyncio.create_task(queue.acquire(AdapterRef(digest="d", path="d", rank=8, bytes=1)))
    await asyncio.wait_for(on_its_way.wait(), PATIENCE)
    other = asyncio.create_task(world.ask("b"))
    while world.manager.entries["b"].requested_since is None:
        await asyncio.sleep(0)
    waiter.cancel()
    assert await asyncio.wait_for(other, PATIENCE)
    await world.manager.close()
    await world.pool.close()
