"""Failing loads, dying and hanging engines, and unplanned memory, with scripted engines."""

import asyncio
import signal

import pytest

from models.messages import LoadResult
from registry.errors import Conflict, DoesNotFit, EngineFailed, NotFound, RoundhouseError, Unavailable
from runtime.residency.entry import ModelEntry
from runtime.residency.states import ModelState
from runtime.slots.link import UNKNOWN, Cause, SlotLink
from tests.fakes.engine import FakeEngine
from tests.unit.residency.scripted import World, in_use


async def test_a_failed_load_fails_all_waiting_requests_and_backs_off(world: World) -> None:
    world.pool.make = lambda: FakeEngine(load_error=EngineFailed("no weights"))
    answers = await asyncio.gather(world.ask("a"), world.ask("a"), return_exceptions=True)
    assert all(isinstance(a, Unavailable) and "no weights" in a.message for a in answers)
    with pytest.raises(Unavailable, match=r"no weights\. The next attempt starts in [1-9]\d* s\.$") as refused:
        await world.ask("a")
    assert refused.value.code == "model_failed"
    assert refused.value.retry_after is not None
    assert world.queues["a"].waiting == 0
    assert (world.pool.links[0].ended, world.pool.free) == (1, 3), "its process is gone"
    world.pool.make = FakeEngine
    await world.manager.load(world.manager.entries["a"])  # an explicit load ignores the back-off
    assert await world.ask("a")


@pytest.mark.parametrize(("used", "awaited"), [([1000, 1090], 90), ([1000, 1600], 100), ([1000, 900], 0)])
async def test_the_memory_of_a_failed_load_is_awaited(world: World, used: list[int], awaited: int) -> None:
    """The load needs 100 bytes, and memory that others take meanwhile is not its own."""
    requested, seen = asyncio.Event(), asyncio.Event()
    figures = iter(used)

    async def look() -> int:
        return next(figures)

    async def back(used_bytes: int, before: int | None) -> None:
        assert (used_bytes, before, world.pool.links[0].ended) == (awaited, used[1], 1)
        requested.set()
        await seen.wait()

    world.memory.used = look  # type: ignore[method-assign,assignment]
    world.memory.back = back  # type: ignore[method-assign]
    world.pool.make = lambda: FakeEngine(load_error=EngineFailed("a broken file"))
    asking = asyncio.create_task(world.ask("a"))
    await asyncio.wait_for(requested.wait(), 200)
    assert (world.state("a"), world.manager.table.used_bytes()) == (ModelState.LOADING, 100)
    seen.set()
    with pytest.raises(Unavailable, match="a broken file"):
        await asking
    assert (world.state("a"), world.manager.table.used_bytes()) == (ModelState.FAILED, 0)


async def test_a_load_out_of_memory_is_repeated_after_idle_models_are_evicted(world: World) -> None:
    await world.ask("a")
    made = iter([FakeEngine(load_error=EngineFailed("no memory", code="out_of_memory")), FakeEngine()])
    world.pool.make = lambda: next(made)
    assert await world.ask("b")
    assert world.witness.events == ["loaded a", "retried b out_of_memory", "evicted a", "loaded b"]


@pytest.mark.parametrize(
    ("cause", "again"),
    [
        (Cause("killed", "by SIGSEGV", signal.SIGSEGV), False),
        (Cause("exited", "with status 1"), False),
        (Cause("engine_hung", "no answer"), False),
        (Cause("killed", "by SIGKILL", signal.SIGKILL), True),
        (Cause("out_of_memory", "by the kernel", signal.SIGKILL), True),
        (UNKNOWN, True),
    ],
)
async def test_a_death_during_a_load_evicts_others_only_if_memory_may_be_the_cause(
    world: World, cause: Cause, again: bool
) -> None:
    await world.ask("a")
    hangs = FakeEngine()
    hangs.load_gate.clear()
    made = iter([hangs, FakeEngine()])
    world.pool.make = lambda: next(made)
    requested = asyncio.create_task(world.ask("b"))
    while len(world.pool.links) < 2 or not world.pool.links[1].server._loading:
        await asyncio.sleep(0.001)
    await world.pool.links[1].end(cause=cause)
    if again:
        assert await asyncio.wait_for(requested, 200)
        assert world.state("a") is ModelState.ABSENT
    else:
        with pytest.raises(Unavailable, match=cause.text):
            await asyncio.wait_for(requested, 200)
        assert world.state("a") is ModelState.READY


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        (Cause("out_of_memory", "by the kernel", signal.SIGKILL), "a load ran out of memory"),
        (Cause("killed", "by SIGKILL", signal.SIGKILL), "a load may have run out of memory"),
        (UNKNOWN, "a load may have run out of memory"),
    ],
)
async def test_the_log_says_out_of_memory_only_if_that_is_known(
    world: World, cause: Cause, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    hangs = FakeEngine()
    hangs.load_gate.clear()
    made = iter([hangs, FakeEngine()])
    world.pool.make = lambda: next(made)
    requested = asyncio.create_task(world.ask("b"))
    while not world.pool.links or not world.pool.links[0].server._loading:
        await asyncio.sleep(0.001)
    await world.pool.links[0].end(cause=cause)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(requested, 200)
    assert [record.message for record in caplog.records if "memory" in record.message] == [says]


async def test_a_dead_engine_is_loaded_again_without_affecting_others(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    b = world.pool.engines[1]
    b.gate.clear()
    other = asyncio.create_task(world.ask("b"))
    while not b.running:
        await asyncio.sleep(0.001)
    await world.pool.links[0].crash()
    assert await asyncio.wait_for(world.ask("a"), 200)
    b.gate.set()
    assert len(await other) == 3
    assert world.witness.events.count("died a ended") == 1
    assert world.witness.events.count("loaded a") == 2


async def test_a_dead_engine_has_its_cause_and_its_bytes_until_its_memory_is_free(world: World) -> None:
    memory_back = asyncio.Event()

    async def back(used_bytes: int, before: int | None) -> None:
        assert (used_bytes, before) == (100, None)
        await memory_back.wait()

    world.memory.back = back  # type: ignore[method-assign]
    await world.ask("a")
    entry = world.manager.entries["a"]
    await world.pool.links[0].end(cause=Cause("engine_hung", "no answer"))
    assert entry.state is ModelState.UNLOADING
    assert entry.bytes == 100
    memory_back.set()
    assert await asyncio.wait_for(world.ask("a"), 200)
    assert entry.failure is not None
    assert entry.failure.cause.code == "engine_hung"
    assert "no answer" in entry.failure.cause.message
    assert world.witness.events == ["loaded a", "died a engine_hung", "loaded a"]


@pytest.mark.parametrize("how", ["unload", "death"])
async def test_a_model_keeps_its_bytes_until_its_processes_have_ended(world: World, how: str) -> None:
    ended = asyncio.Event()
    await world.ask("a")
    entry, link = world.manager.entries["a"], world.pool.links[0]
    end = link.end

    async def slowly(cause: Cause | None = None) -> None:
        await ended.wait()
        await end(cause)

    if how == "death":
        link.gone = ended.wait  # type: ignore[assignment]
        await link.crash()
        leaving = [asyncio.create_task(world.manager.unload(entry))]
    else:
        link.end = slowly  # type: ignore[method-assign]
        leaving = [asyncio.create_task(world.manager.unload(entry)) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in leaving)
    assert (entry.state, entry.bytes) == (ModelState.UNLOADING, 100)
    ended.set()
    await asyncio.gather(*leaving)
    assert await world.ask("a")


@pytest.mark.parametrize("how", ["unload", "remove"])
async def test_a_load_that_no_request_waits_for_is_stopped(world: World, how: str) -> None:
    await world.ask("a")
    hangs = FakeEngine()
    hangs.load_gate.clear()
    world.pool.make = lambda: hangs
    entry = world.manager.entries["b"]
    loading = asyncio.create_task(world.manager.load(entry))
    while len(world.pool.links) < 2 or not world.pool.links[1].server._loading:
        await asyncio.sleep(0.001)
    if how == "unload":
        await asyncio.wait_for(world.manager.unload(entry), 200)
        with pytest.raises(Conflict, match="was unloaded while it loaded"):
            await loading
        assert (entry.state, entry.failure, entry.bytes) == (ModelState.ABSENT, None, 0)
        world.pool.make = FakeEngine
        assert await world.ask("b")
    else:
        await asyncio.wait_for(world.manager.remove(entry, NotFound("It was removed.")), 200)
        with pytest.raises(NotFound, match="was removed"):
            await loading
    assert world.pool.links[1].ended >= 1
    assert world.state("a") is ModelState.READY, "a stopped load evicts nothing"
    assert "failed b" not in world.witness.events


async def test_a_load_that_is_stopped_once_its_engine_is_ready_is_not_served(world: World) -> None:
    """The engine's end was asked for, so requests must not begin on it."""
    entry, loader = world.manager.entries["a"], world.manager.loader
    send = loader._send_load

    async def stopped_last(entry: ModelEntry, link: SlotLink) -> LoadResult:
        loaded = await send(entry, link)
        loader.stop(entry)
        return loaded

    loader._send_load = stopped_last  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="was unloaded while it loaded"):
        await world.manager.load(entry)
    assert (entry.state, entry.failure, entry.bytes) == (ModelState.ABSENT, None, 0)
    assert "loaded a" not in world.witness.events


async def test_an_unload_at_the_end_of_a_download_stops_no_later_load(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The files are there, and adapters are still being registered."""
    entry, here, registered = world.manager.get("a"), asyncio.Event(), asyncio.Event()
    path, entry.path = entry.path, None

    async def fetch(entry: ModelEntry, reported: object) -> None:
        entry.path = path
        here.set()
        await registered.wait()

    world.manager.fetcher.fetch = fetch
    world.manager.begin_fetch(entry)
    await here.wait()
    unloading = asyncio.create_task(world.manager.unload(entry))
    await asyncio.sleep(0)
    registered.set()
    await asyncio.wait_for(unloading, 200)
    with caplog.at_level("INFO"):
        assert await world.ask("a")
    assert [record.message for record in caplog.records].count("plan") == 1


async def test_a_load_stopped_before_it_has_a_slot_takes_none(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    entry = world.manager.entries["c"]
    async with in_use(world, "a"), in_use(world, "b"):
        loading = asyncio.create_task(world.manager.load(entry))
        while entry.state is not ModelState.LOADING:
            await asyncio.sleep(0.001)
        unloading = asyncio.create_task(world.manager.unload(entry))
        await asyncio.sleep(0.01)
    await asyncio.wait_for(unloading, 200)
    with pytest.raises(Conflict):
        await loading
    assert (entry.state, entry.bytes, len(world.pool.links)) == (ModelState.ABSENT, 0, 2)


async def test_a_load_that_a_request_waits_for_is_not_stopped(world: World) -> None:
    hangs = FakeEngine()
    hangs.load_gate.clear()
    world.pool.make = lambda: hangs
    waiting = asyncio.create_task(world.ask("a"))
    while not world.pool.links or not world.pool.links[0].server._loading:
        await asyncio.sleep(0.001)
    unloading = asyncio.create_task(world.manager.unload(world.manager.entries["a"]))
    await asyncio.sleep(0.01)
    hangs.load_gate.set()
    assert await asyncio.wait_for(waiting, 200)
    await unloading
    assert world.witness.events == ["loaded a", "evicted a"]


async def test_a_load_that_gets_no_second_slot_does_not_end_its_first_slot_again(world: World) -> None:
    """The first slot may belong to another model by then."""
    await world.ask("a")
    take = world.pool.take

    async def first_only(engine: str) -> SlotLink:
        if len(world.pool.links) == 2:
            raise Unavailable("No slot became free in time.")
        return await take(engine)

    world.pool.take = first_only  # type: ignore[method-assign,assignment]
    world.pool.make = lambda: FakeEngine(load_error=EngineFailed("no memory", code="out_of_memory"))
    with pytest.raises(Unavailable, match="No slot became free"):
        await world.ask("b")
    assert [link.ended for link in world.pool.links] == [1, 1]


async def test_an_engine_that_does_not_answer_is_ended(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    world.pool.engines[0].ping_gate.clear()
    world.pool.links[1].command = lambda *_: asyncio.sleep(0)  # type: ignore[method-assign]  # answers at once
    watching = asyncio.create_task(world.manager.watcher.watch(heartbeat=0.01, hung_after=0.05))
    while "died a engine_hung" not in world.witness.events:
        await asyncio.sleep(0.001)
    watching.cancel()
    assert await asyncio.wait_for(world.ask("a"), 200)
    assert world.state("b") is ModelState.READY
    assert world.witness.events.count("loaded b") == 1


async def test_an_error_at_a_heartbeat_does_not_end_the_later_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.ask("a")
    world.pool.engines[0].ping_gate.clear()
    figures = [OSError("the driver's library is being replaced")]

    async def look() -> None:
        if figures:
            raise figures.pop()

    monkeypatch.setattr(world.memory, "used", look)
    watching = asyncio.create_task(world.manager.watcher.watch(heartbeat=0.01, hung_after=0.05))
    while "died a engine_hung" not in world.witness.events:
        assert not watching.done()
        await asyncio.sleep(0.001)
    watching.cancel()


async def test_a_load_that_hangs_is_ended_and_reported(world: World) -> None:
    world.pool.make = lambda: (e := FakeEngine(), e.load_gate.clear())[0]
    asking = asyncio.create_task(world.ask("a"))
    while not world.pool.links or not world.pool.links[0].server._loading:
        await asyncio.sleep(0.001)
    world.pool.links[0].server._loading = False  # the slot's loop does not answer during the load
    watching = asyncio.create_task(world.manager.watcher.watch(heartbeat=0.01, hung_after=0.05))
    with pytest.raises(Unavailable, match="died while it loaded"):
        await asyncio.wait_for(asking, 200)
    watching.cancel()


async def test_a_load_by_hand_whose_engine_dies_may_be_repeated(world: World) -> None:
    world.pool.make = lambda: (e := FakeEngine(), e.load_gate.clear())[0]
    loading = asyncio.create_task(world.manager.load(world.manager.entries["a"]))
    while not world.pool.links or not world.pool.links[0].server._loading:
        await asyncio.sleep(0.001)
    await world.pool.links[0].end(cause=Cause("killed", "its process was ended by SIGSEGV", signal.SIGSEGV))
    with pytest.raises(Unavailable, match="died while it loaded: its process was ended by SIGSEGV") as died:
        await asyncio.wait_for(loading, 200)
    assert (died.value.code, died.value.retry_after) == ("killed", 1.0)


async def test_an_unexpected_error_in_a_load_makes_it_fail(world: World) -> None:
    async def broken(engine: str) -> None:
        raise OSError("no such slot")

    world.pool.take = broken  # type: ignore[assignment]
    with pytest.raises(Unavailable, match="inside the server: OSError"):
        await world.ask("a")
    assert world.state("a") is ModelState.FAILED
    assert not world.manager.table.claims


async def holds(world: World, name: str, used_bytes: int) -> None:
    entry = world.manager.entries[name]
    assert entry.link is not None
    await world.manager.watcher.holds(entry, entry.link, used_bytes)


async def test_a_models_growth_counts_also_after_a_reload(world: World) -> None:
    await world.ask("a")
    entry = world.manager.entries["a"]
    await holds(world, "a", 90)
    assert entry.bytes == 100
    await holds(world, "a", 140)
    assert (entry.bytes, entry.needed, entry.after_load, entry.margin) == (140, 140, 100, 40)
    await world.ask("b")
    await world.manager.unload(entry)
    await world.ask("a")
    assert entry.bytes == 140
    assert world.witness.events.count("grew a 140") == 1


async def test_a_model_is_evicted_if_growth_overdraws_the_budget(world: World) -> None:
    """Two models of 100 bytes fit into 250, until one of them grows to 155."""
    await world.ask("a")
    await world.ask("b")
    await holds(world, "b", 155)
    while world.state("a") is not ModelState.ABSENT:
        await asyncio.sleep(0.001)
    assert world.state("b") is ModelState.READY
    assert world.manager.table.used_bytes() == 155


async def test_an_overdrawn_budget_is_corrected_without_further_requests(world: World) -> None:
    """When it was noticed, the idle model had been loaded too recently to be evicted."""
    least = {"residency": world.manager.entries["a"].recipe.residency.model_copy(update={"min_resident": 0.5})}
    for entry in world.manager.entries.values():
        entry.recipe = entry.recipe.model_copy(update=least)
    await world.ask("a")
    await world.ask("b")
    await holds(world, "b", 155)
    async with asyncio.timeout(200):
        while world.state("a") is not ModelState.ABSENT:
            await asyncio.sleep(0.001)
    assert world.manager.table.used_bytes() == 155


@pytest.mark.parametrize("pinned", [True, False])
async def test_a_load_whose_room_is_lost_to_growth_waits_again(world: World, pinned: bool) -> None:
    """While `c` leaves for `b`, `a`, which is in use, grows to 155 of 250 bytes."""
    await world.ask("c")
    await world.ask("a")
    async with in_use(world, "a"):
        if pinned:
            world.manager.pin(world.manager.entries["a"], True)
        async with in_use(world, "c"):
            requested = asyncio.create_task(world.ask("b"))
            while world.state("c") is not ModelState.DRAINING:
                await asyncio.sleep(0.001)
            await holds(world, "a", 155)
        if pinned:
            with pytest.raises(DoesNotFit, match=r"pinned models hold 155 Bytes \(a\)"):
                await asyncio.wait_for(requested, 200)
            assert world.state("b") is ModelState.FAILED
            return
        while world.state("a") is not ModelState.DRAINING:
            await asyncio.sleep(0.001)
        assert not requested.done()
    assert await asyncio.wait_for(requested, 200)
    assert world.witness.events == ["loaded c", "loaded a", "grew a 155", "evicted c", "evicted a", "loaded b"]


async def test_a_model_that_exceeds_its_allowance_is_restarted_without_affecting_others(world: World) -> None:
    """The allowance is 100 bytes after the load and 60 for its work. Running requests finish first."""
    await world.ask("a")
    await world.ask("b")
    entry = world.manager.entries["b"]
    async with in_use(world, "b"):
        await holds(world, "b", 161)
        assert entry.state is ModelState.DRAINING
        await holds(world, "b", 170)
    while entry.loads < 2:
        await world.manager.table.change()
    assert (entry.bytes, entry.margin) == (100, 0), "nothing is learnt from it"
    assert world.witness.events == ["loaded a", "loaded b", "evicted b", "loaded b"]
    assert world.state("a") is ModelState.READY
    assert entry.failure is not None
    assert entry.failure.cause.code == "memory_overdrawn"
    assert "161 Bytes" in entry.failure.cause.message


@pytest.mark.long
async def test_a_model_at_twice_its_allowance_is_ended_without_a_drain(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    entry = world.manager.entries["b"]
    b = world.pool.engines[1]
    b.gate.clear()
    running = asyncio.create_task(world.ask("b"))
    while not b.running:
        await asyncio.sleep(0.001)
    await holds(world, "b", 200)
    await holds(world, "b", 321)
    with pytest.raises(RoundhouseError, match="It used 321 Bytes of memory, but is allowed only 160 Bytes"):
        await running
    while entry.loads < 2:
        await world.manager.table.change()
    assert (entry.bytes, world.state("a")) == (100, ModelState.READY)
    assert "died b memory_overdrawn" in world.witness.events


async def test_a_model_that_exceeds_its_allowance_repeatedly_is_loaded_only_on_request(world: World) -> None:
    entry = world.manager.entries["b"]
    await world.ask("b")
    for life in range(2, 5):
        await holds(world, "b", 161)
        while entry.loads < life:
            await world.manager.table.change()
    await holds(world, "b", 161)
    while entry.state is not ModelState.ABSENT:
        await world.manager.table.change()
    assert entry.requested_since is None, "four times in ten minutes"
    assert await world.ask("b")


async def test_a_failed_loads_slot_is_freed_even_if_memory_cannot_be_read(world: World) -> None:
    async def unknown() -> int:
        raise OSError("the driver went away")

    world.memory.used = unknown  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await world.ask("a")
    assert (world.pool.links[0].ended, world.pool.free) == (1, 3)


async def test_a_model_that_dies_while_it_is_unloaded_by_hand_stays_away(world: World) -> None:
    async with in_use(world, "a"):
        unloading = asyncio.create_task(world.manager.unload(world.manager.get("a")))
        while world.state("a") is not ModelState.DRAINING:
            await asyncio.sleep(0)
        await world.pool.links[0].crash()
    await asyncio.wait_for(unloading, 200)
    assert (world.state("a"), world.manager.entries["a"].requested_since) == (ModelState.FAILED, None)


async def test_a_model_that_died_before_stays_away_too_if_it_dies_while_it_leaves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.residency.entry.BACKOFF_SECONDS", (0.0,))
    entry = world.manager.get("a")
    entry.fail(EngineFailed("It died."))
    async with in_use(world, "a"):
        unloading = asyncio.create_task(world.manager.unload(entry))
        while world.state("a") is not ModelState.DRAINING:
            await asyncio.sleep(0)
        await world.pool.links[0].crash()
    await asyncio.wait_for(unloading, 200)
    await asyncio.sleep(0.01)  # longer than the pause before a reload
    assert (len(entry.failures), entry.state, entry.requested_since) == (2, ModelState.FAILED, None)


async def test_a_model_that_dies_while_it_leaves_comes_back_for_a_request(world: World) -> None:
    async with in_use(world, "a"):
        unloading = asyncio.create_task(world.manager.unload(world.manager.get("a")))
        while world.state("a") is not ModelState.DRAINING:
            await asyncio.sleep(0)
        asks = asyncio.create_task(world.ask("a"))
        while not world.queues["a"].waiting:
            await asyncio.sleep(0)
        await world.pool.links[0].crash()
    assert await asyncio.wait_for(asks, 200)
    await asyncio.wait_for(unloading, 200)
