"""The queue of a model with adapters, on a real socket to a scripted engine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models.messages import AdapterRef
from registry.errors import Conflict, EngineFailed, QueueFull, Unavailable, Unreachable
from registry.recipes.definition import AdapterPlaces, PoolSpec, QueueSpec
from runtime.scheduling.fair import QueueRequest
from tests.unit.scheduling.adapter_line import WRONG, World, adapter, ask, dropped, line_with_adapters


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with line_with_adapters(tmp_path) as world:
        yield world


async def test_an_adapter_is_in_place_before_its_request_starts(world: World) -> None:
    assert await ask(world, adapter("a")) == 5  # the engine refuses an adapter that is not placed
    assert world.engine.places == {adapter("a").digest}


async def test_more_adapters_than_places_take_turns(world: World) -> None:
    answers = await asyncio.gather(*(ask(world, adapter(letter)) for letter in "abcdefabcdef"))
    assert answers == [5] * 12
    assert len(world.engine.places) <= 2


async def test_base_requests_run_while_an_adapter_is_staged(world: World) -> None:
    waiting = asyncio.create_task(ask(world, adapter("a")))
    assert await ask(world, None) == 5
    assert await waiting == 5


async def test_a_broken_adapter_fails_only_its_own_requests(world: World) -> None:
    bad = AdapterRef(digest="sha256:" + "b" * 64, path="/broken", rank=8, bytes=1)
    results = await asyncio.gather(ask(world, bad), ask(world, adapter("a")), ask(world, bad), return_exceptions=True)
    assert results[1] == 5
    assert all(isinstance(results[i], EngineFailed) and "broken" in str(results[i]) for i in (0, 2))
    assert await ask(world, adapter("c")) == 5


async def test_placing_is_repeated_while_the_place_is_in_use(world: World) -> None:
    world.engine.conflicts = 3
    assert await ask(world, adapter("a")) == 5
    assert world.engine.conflicts == 0


async def test_staging_without_room_waits_for_pending_drops(world: World) -> None:
    gate = asyncio.Event()
    world.queue.effects._drops[world.queue.effects._send(gate.wait())] = "another"  # type: ignore[arg-type]
    world.engine.full = 1
    waiting = asyncio.create_task(ask(world, adapter("a")))
    while world.engine.full:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert world.engine.staged == []
    gate.set()
    assert await waiting == 5


async def test_staging_with_enough_room_does_not_wait_for_drops(world: World) -> None:
    gate = asyncio.Event()
    world.queue.effects._drops[world.queue.effects._send(gate.wait())] = "another"  # type: ignore[arg-type]
    assert await ask(world, adapter("a")) == 5
    gate.set()


async def test_staging_waits_for_the_drop_of_the_same_adapter(world: World) -> None:
    """Otherwise the drop would remove the newly staged adapter before it is placed."""
    gate, ref = asyncio.Event(), adapter("a")
    world.queue.effects._drops[world.queue.effects._send(gate.wait())] = ref.digest  # type: ignore[arg-type]
    waiting = asyncio.create_task(ask(world, ref))
    await asyncio.sleep(0.02)
    assert world.engine.staged == []
    gate.set()
    assert await waiting == 5


async def test_staging_without_room_and_pending_drops_is_an_error(world: World) -> None:
    world.engine.full = 1
    with pytest.raises(EngineFailed, match="no host room"):
        await ask(world, adapter("a"))


async def test_files_are_checked_before_they_are_staged(world: World) -> None:
    world.registry.damaged = EngineFailed("its files are gone", code="adapter_damaged")
    with pytest.raises(EngineFailed, match="files are gone"):
        await ask(world, adapter("a"))
    assert world.engine.staged == []


async def test_a_new_engine_gets_the_adapters_of_waiting_requests(world: World, tmp_path: Path) -> None:
    await ask(world, adapter("a"))
    world.queue.engine_gone()
    waiting = asyncio.create_task(ask(world, adapter("a")))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    world.engine.places.clear()
    world.queue.open(world.link)
    assert await waiting == 5


async def test_the_wait_is_bounded(world: World) -> None:
    for _ in range(world.queue.recipe.batching.max_requests):
        await world.queue.acquire(None)
    for message in ("busy with other requests", "not loaded yet"):
        with pytest.raises(Unavailable, match=message) as error:
            await world.queue.acquire(None, max_wait=0.02)
        assert error.value.retry_after is not None
        assert world.queue.waiting == 0
        world.queue.close()


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(world: World) -> None:
    world.queue.close()
    task = asyncio.create_task(ask(world, adapter("a")))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (world.queue.waiting, world.queue.running) == (0, 0)
    assert world.queue._bounds.waiting == 0, "the server's count"
    world.queue.open(world.link)
    assert await ask(world, None) == 5


@pytest.mark.parametrize("how", ["leaves", "time-out"])
async def test_a_client_that_leaves_just_as_its_turn_comes_holds_nothing(world: World, how: str) -> None:
    world.queue.close()
    task = asyncio.create_task(world.queue.acquire(None, max_wait=0.0 if how == "time-out" else None))
    await asyncio.sleep(0)
    world.queue.open(world.link)  # its turn, which it learns in the loop's next iteration
    if how == "leaves":
        task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, Unavailable if how == "time-out" else asyncio.CancelledError)
    assert (world.queue.running, world.queue.waiting) == (0, 0)
    assert await ask(world, None) == 5


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (AdapterPlaces(device=0, host=0), "no adapter places"),
        (AdapterPlaces(device=2, host=4, max_rank=1), "rank 8.* take 1. Raise memory.adapters.max_rank"),
    ],
)
async def test_an_adapter_without_a_place_that_fits_is_refused_and_leaves_nothing_behind(
    world: World, places: AdapterPlaces, message: str
) -> None:
    recipe = world.queue.recipe
    memory = recipe.memory.model_copy(update={"adapters": places})
    world.queue.change(recipe.model_copy(update={"memory": memory}))
    world.queue.open(world.link)
    with pytest.raises(Conflict, match=message):
        await ask(world, adapter("a"))
    assert (world.queue.waiting, world.queue._bounds.waiting) == (0, 0)
    assert not world.queue.holds(adapter("a").digest)
    assert await ask(world, None) == 5


async def test_many_clients_that_leave_at_once_hold_nothing(world: World) -> None:
    """A closing server or a cancelled batch ends all of its requests at once."""
    world.queue._bounds.max_waiting = 2000
    world.queue.change(world.queue.recipe.model_copy(update={"queue": QueueSpec(max_waiting=2000)}))
    turns = [await world.queue.acquire(None) for _ in range(4)]
    leavers = [asyncio.create_task(world.queue.acquire(None)) for _ in range(1500)]
    stayer = asyncio.create_task(world.queue.acquire(None))
    while world.queue.waiting < 1501:
        await asyncio.sleep(0)
    for leaver in leavers:
        leaver.cancel()
    turns.pop().release()  # before any of them can run
    assert world.queue.running == 4, "the next request that has not left gets its turn"
    (await stayer).release()
    for turn in turns:
        turn.release()
    assert (world.queue.running, world.queue.waiting, world.queue._bounds.waiting) == (0, 0, 0)
    assert world.queue.policy.running == 0
    ends = await asyncio.gather(*leavers, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)


async def test_residency_learns_of_a_client_that_left_just_before_its_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a model that became idle would neither make room nor take its new recipe until the next request."""
    waiting = list[int]()
    monkeypatch.setattr(world.queue, "_released", lambda: waiting.append(world.queue.waiting))
    world.queue.close()
    leaving = asyncio.create_task(world.queue.acquire(None))
    await asyncio.sleep(0)
    leaving.cancel()
    world.queue.open(world.link)
    await asyncio.wait({leaving})
    assert waiting == [0]


async def test_a_request_refused_just_as_its_turn_comes_holds_nothing(world: World) -> None:
    world.queue.close()
    refused = asyncio.create_task(world.queue.acquire(None))
    while not world.queue.waiting:
        await asyncio.sleep(0)
    world.queue.refuse(Unavailable("It could not be loaded."))
    world.queue.open(world.link)
    with pytest.raises(Unavailable, match="could not be loaded"):
        await refused
    assert (world.queue.running, world.queue.waiting, world.queue.policy.running) == (0, 0, 0)
    assert await ask(world, None) == 5


async def test_an_adapter_is_held_while_one_of_its_requests_waits_or_runs(world: World) -> None:
    world.engine.gate.clear()
    base, tuned = (asyncio.create_task(ask(world, ref)) for ref in (None, adapter("a")))
    while not world.queue.holds(adapter("a").digest):
        await asyncio.sleep(0)
    assert not world.queue.holds(adapter("b").digest)
    world.engine.gate.set()
    assert await asyncio.gather(base, tuned) == [5, 5]
    assert not world.queue.holds(adapter("a").digest)


async def test_a_removed_adapter_is_dropped_from_the_engine(world: World) -> None:
    await ask(world, adapter("a"))
    world.queue.forget_adapter(adapter("a").digest)
    await dropped(world, adapter("a"))


async def test_nothing_is_remembered_of_removed_adapters(world: World) -> None:
    """One was used, one never was, and one was removed while a request waited for it and then left."""
    effects, places = world.queue.effects, world.queue.policy
    await ask(world, adapter("a"))
    for letter in "ab":
        world.queue.forget_adapter(adapter(letter).digest)
    await dropped(world, adapter("a"))
    await effects.wait_until_settled()  # else its drop may be answered after "c" is forgotten
    world.queue.close()
    waiting = asyncio.create_task(world.queue.acquire(adapter("c")))
    await asyncio.sleep(0)
    world.queue.forget_adapter(adapter("c").digest)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    world.queue.open(world.link)
    await effects.wait_until_settled()
    assert (effects._refs, effects.stats, effects._forgotten) == ({}, {}, set())
    assert (places._forgotten, places._counts) == (set(), {})
    assert world.registry.gone == [adapter(letter).digest for letter in "ac"], "their files are not needed any more"


async def test_a_removed_adapter_in_use_is_dropped_once_it_is_unused(world: World) -> None:
    """The engine may still be ending a cancelled call when the policy counts the place as free."""
    await ask(world, adapter("a"))
    world.engine.conflicts = 3
    world.queue.forget_adapter(adapter("a").digest)
    await dropped(world, adapter("a"))
    assert world.engine.places == set()


async def test_a_failing_pinned_adapter_is_not_repeated_forever(world: World) -> None:
    world.registry.known[adapter("a").digest] = (WRONG,)
    world.queue.pin_adapter(adapter("a"))
    await dropped(world, adapter("a"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert await ask(world, adapter("b")) == 5
    assert world.engine.staged.count(adapter("a").digest) == 1


async def test_requests_that_wait_for_a_removed_adapter_are_served(world: World) -> None:
    world.engine.gate.clear()
    running = [asyncio.create_task(ask(world, adapter("a"))) for _ in range(6)]  # four run, two wait
    while world.engine.running < 4:
        await asyncio.sleep(0.001)
    world.queue.forget_adapter(adapter("a").digest)
    assert world.registry.gone == []
    world.engine.gate.set()
    assert await asyncio.gather(*running) == [5] * 6
    await dropped(world, adapter("a"))
    async with asyncio.timeout(200):
        while world.registry.gone != [adapter("a").digest]:
            await asyncio.sleep(0.001)


async def test_retry_after_is_at_most_a_minute(world: World) -> None:
    """Even for a slow model, because longer predictions are only guesses."""
    world.queue.change(world.queue.recipe.model_copy(update={"queue": QueueSpec(max_waiting=1)}))
    world.queue._pace.ended(3600.0, 1.0)
    world.queue.close()
    waiting = asyncio.create_task(world.queue.acquire(None))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull) as error:
        await world.queue.acquire(None)
    assert error.value.retry_after == 60
    waiting.cancel()


async def test_an_adapter_removed_during_its_placement_frees_its_place(world: World) -> None:
    world.engine.place_gate.clear()
    asks = asyncio.create_task(ask(world, adapter("a")))
    while not world.engine.arrivals:
        await asyncio.sleep(0.001)
    asks.cancel()
    await asyncio.gather(asks, return_exceptions=True)
    world.queue.forget_adapter(adapter("a").digest)
    world.engine.place_gate.set()
    await dropped(world, adapter("a"))
    assert (world.queue.policy.moving(), world.queue.policy.resident()) == ({}, ())
    assert await asyncio.gather(*(ask(world, adapter(letter)) for letter in "bc")) == [5, 5]


@pytest.mark.parametrize("where", ["check", "probes"])
async def test_an_unexpected_error_before_a_placement_leaves_no_place_occupied(world: World, where: str) -> None:
    def broken(digest: str) -> None:
        raise OSError("too many open files")

    working = getattr(world.registry, where)
    setattr(world.registry, where, broken)
    with pytest.raises(EngineFailed, match="OSError"):
        await ask(world, adapter("a"))
    setattr(world.registry, where, working)
    assert world.queue.policy.moving() == {}
    assert await asyncio.gather(*(ask(world, adapter(letter)) for letter in "abc")) == [5, 5, 5]


async def test_a_deadline_that_cannot_be_met_is_refused_at_once(world: World) -> None:
    assert await ask(world, None) == 5
    for _ in range(500):
        world.queue._pace.ended(80.0, 1.0)  # a place becomes free every 20 s
    world.engine.gate.clear()
    now = world.queue._clock()
    running = [asyncio.create_task(ask(world, None, claim=QueueRequest(due=now + 400.0))) for _ in range(8)]
    while world.engine.running < 4:  # the other four wait
        await asyncio.sleep(0.001)
    eager = asyncio.create_task(world.queue.acquire(None, claim=QueueRequest(due=now + 60.0)))
    await asyncio.sleep(0)
    assert not eager.done(), "it comes before waiting requests with later deadlines"
    with pytest.raises(Unreachable, match=r"would wait about 20\.0 s now, but this one has") as error:
        await world.queue.acquire(None, claim=QueueRequest(due=now + 15.0))
    assert error.value.predicted_wait_seconds == pytest.approx(20.0, rel=0.01)
    assert error.value.retry_after == pytest.approx(5.0, abs=1.0), "when its own seconds would be enough"
    world.engine.gate.set()
    (await eager).release()
    assert await asyncio.gather(*running) == [5] * 8


async def test_a_full_queue_makes_room_for_a_team_with_fewer_requests(world: World) -> None:
    world.queue.change(world.queue.recipe.model_copy(update={"queue": QueueSpec(max_waiting=3)}))
    world.queue.close()
    flood = [asyncio.create_task(world.queue.acquire(None, claim=QueueRequest("flood"))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await world.queue.acquire(None, claim=QueueRequest("flood"))
    quiet = asyncio.create_task(world.queue.acquire(None, claim=QueueRequest("quiet")))
    with pytest.raises(QueueFull):
        await flood[2]
    assert world.queue.waiting == 3
    world.queue.open(world.link)
    for turn in (*flood[:2], quiet):
        (await turn).release()


async def test_without_a_queue_a_request_starts_at_once_or_is_refused(world: World) -> None:
    pools = {"long": PoolSpec(max_requests=1, max_waiting=0)}
    world.queue.change(world.queue.recipe.model_copy(update={"queue": QueueSpec(max_waiting=0), "pools": pools}))
    turns = [await world.queue.acquire(None, claim=QueueRequest(pool="long"))]
    with pytest.raises(QueueFull, match="pool 'long'"):
        await world.queue.acquire(None, claim=QueueRequest(pool="long"))
    while world.queue.running < world.queue.policy.max_requests:
        turns.append(await world.queue.acquire(None))
    with pytest.raises(QueueFull):
        await world.queue.acquire(None)
    for turn in turns:
        turn.release()


@pytest.mark.parametrize("why", ["deadline", "pool", "server", "probe"])
async def test_no_request_is_removed_for_one_that_is_refused_anyway(world: World, why: str) -> None:
    pools = {"long": PoolSpec(max_requests=1, max_waiting=1)}
    world.queue.change(world.queue.recipe.model_copy(update={"queue": QueueSpec(max_waiting=3), "pools": pools}))
    world.registry.known[adapter("a").digest] = (WRONG,)
    with pytest.raises(Unavailable):
        await ask(world, adapter("a"), WRONG)
    world.queue._pace.ended(80.0, 1.0)
    world.queue.close()
    flood = [asyncio.create_task(world.queue.acquire(None, claim=QueueRequest("flood", pool="long")))]
    flood += [asyncio.create_task(world.queue.acquire(None, claim=QueueRequest("flood"))) for _ in range(2)]
    await asyncio.sleep(0)
    claim = QueueRequest("quiet")
    if why == "deadline":
        claim = QueueRequest("quiet", due=world.queue._clock() + 1.0)
    elif why == "pool":
        claim = QueueRequest("quiet", pool="long")
    elif why == "server":
        world.queue._bounds.max_waiting = 3
    with pytest.raises(Unavailable if why == "probe" else Unreachable if why == "deadline" else QueueFull):
        await world.queue.acquire(adapter("a") if why == "probe" else None, probe=WRONG, claim=claim)
    await asyncio.sleep(0)
    assert not any(task.done() for task in flood)
    world.queue.open(world.link)
    for turn in await asyncio.gather(*flood):
        turn.release()


async def test_a_pool_has_its_own_bound(world: World) -> None:
    pools = {"long": PoolSpec(max_requests=1, max_waiting=1)}
    world.queue.change(world.queue.recipe.model_copy(update={"pools": pools}))
    runs = await world.queue.acquire(None, claim=QueueRequest(pool="long"))
    assert runs.ticket.claim.pool == "long"
    waits = asyncio.create_task(world.queue.acquire(None, claim=QueueRequest(pool="long")))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="pool 'long'"):
        await world.queue.acquire(None, claim=QueueRequest(pool="long"))
    (await world.queue.acquire(None)).release()
    assert not waits.done()
    runs.release()
    (await waits).release()
