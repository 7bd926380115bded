"""The one writer of the model table, with scripted engines behind real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from models.messages import HttpCall, Loaded
from registry.errors import Conflict, DoesNotFit, EngineFailed, QueueFull, RoundhouseError, Unavailable
from registry.recipe import Recipe
from runtime import frames
from runtime.death import Cause
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.states import ModelState
from runtime.residency.victims import NO_LIMIT
from runtime.scheduler import Bounds, ModelQueue
from tests.fakes.engine import FakeEngine
from tests.fakes.pool import FakePool


class Witness:
    def __init__(self) -> None:
        self.events: list[str] = []

    def loaded(self, entry: ModelEntry, loaded: Loaded, seconds: float, expected: float, needed: int) -> None:
        self.events.append(f"loaded {entry.id}")

    def load_failed(self, entry: ModelEntry, error: RoundhouseError) -> None:
        self.events.append(f"failed {entry.id}")

    def retried(self, entry: ModelEntry, reason: str) -> None:
        self.events.append(f"retried {entry.id} {reason}")

    def grew(self, entry: ModelEntry) -> None:
        self.events.append(f"grew {entry.id} {entry.bytes}")

    def evicted(self, entry: ModelEntry, reason: str) -> None:
        self.events.append(f"evicted {entry.id}")

    def slept(self, entry: ModelEntry, reason: str, seconds: float, freed: int) -> None:
        self.events.append(f"slept {entry.id}")

    def woke(self, entry: ModelEntry, seconds: float) -> None:
        self.events.append(f"woke {entry.id}")

    def sleep_failed(self, entry: ModelEntry, step: str, error: RoundhouseError) -> None:
        self.events.append(f"{step} failed {entry.id}")

    def died(self, entry: ModelEntry, reason: str) -> None:
        self.events.append(f"died {entry.id} {reason}")


def recipe(name: str, **residency: object) -> Recipe:
    return Recipe.model_validate(
        {
            "id": name, "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"},
            "residency": {"min_resident": 0, **residency}, "queue": {"max_waiting": 4, "max_wait": 5},
            "batching": {"max_requests": 2},
        }
    )  # fmt: skip


class World:
    """A manager over `names`, each model 100 bytes, a budget for two."""

    def __init__(self, folder: Path, names: str = "abc", budget: int = 250, host_budget: int = NO_LIMIT) -> None:
        self.witness = Witness()
        self.pool = FakePool(folder, 3, FakeEngine)
        self.queues: dict[str, ModelQueue] = {}
        bounds = Bounds(100)
        entries = []
        for name in names:
            entry = ModelEntry(
                recipe=recipe(name), path=folder, revision="r", needed=100, needed_detail="", load_seconds=0.1,
                queue=None,  # type: ignore[arg-type]
            )  # fmt: skip
            queue = ModelQueue(
                entry.recipe,
                bounds,
                want=lambda entry=entry: self.manager.want(entry),
                released=lambda entry=entry: self.manager.released(entry),
            )
            entry.queue = self.queues[name] = queue
            entries.append(entry)

        async def back(held: int) -> None:
            return None

        self.manager = ResidencyManager(entries, self.pool, budget, "cpu", self.witness, back, 0.05, host_budget)  # type: ignore[arg-type]
        self.pool.on_death = self.manager.died

    def state(self, name: str) -> ModelState:
        return self.manager.entries[name].state

    async def ask(self, name: str) -> list[bytes]:
        """One request from arrival to its end."""
        async with await self.queues[name].acquire(None) as lease:
            call = HttpCall(path="/", body=b"", served=name, shown=name)
            async with lease.link.call(lambda uid: frames.Call(uid, call)) as answer:
                return [e.data async for e in answer.events() if hasattr(e, "data")]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.manager.close()
    await world.pool.close()


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


async def test_the_least_recently_used_one_leaves(world: World) -> None:
    for name in "abac":
        await world.ask(name)
    assert world.witness.events == ["loaded a", "loaded b", "evicted b", "loaded c"]
    assert world.state("b") is ModelState.ABSENT


async def test_a_busy_victim_finishes_before_it_leaves(world: World) -> None:
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
    reason = await asyncio.wait_for(lease.ticket.aborted, 2)  # type: ignore[arg-type]
    assert reason.code == "drained"
    lease.release()
    assert await newcomer
    await world.manager.close()
    await world.pool.close()


async def test_a_failed_load_tells_everybody_and_backs_off(world: World) -> None:
    world.pool.make = lambda: FakeEngine(load_error=EngineFailed("no weights"))
    answers = await asyncio.gather(world.ask("a"), world.ask("a"), return_exceptions=True)
    assert all(isinstance(a, Unavailable) and "no weights" in a.message for a in answers)
    with pytest.raises(Unavailable, match="next try") as refused:
        await world.ask("a")
    assert refused.value.retry_after is not None
    assert world.queues["a"].waiting == 0
    world.pool.make = FakeEngine
    await world.manager.load(world.manager.entries["a"])  # by hand: no back-off
    assert await world.ask("a")


async def test_a_load_out_of_memory_is_tried_again_with_the_idle_ones_gone(world: World) -> None:
    await world.ask("a")
    made = iter([FakeEngine(load_error=EngineFailed("no memory", code="out_of_memory")), FakeEngine()])
    world.pool.make = lambda: next(made)
    assert await world.ask("b")
    assert world.witness.events == ["loaded a", "retried b out_of_memory", "evicted a", "loaded b"]


async def test_a_dead_engine_comes_back_and_others_notice_nothing(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    b = world.pool.engines[1]
    b.gate.clear()
    other = asyncio.create_task(world.ask("b"))
    while not b.running:
        await asyncio.sleep(0.001)
    await world.pool.links[0].crash()
    assert await asyncio.wait_for(world.ask("a"), 2)
    b.gate.set()
    assert len(await other) == 3
    assert world.witness.events.count("died a ended") == 1
    assert world.witness.events.count("loaded a") == 2


async def test_what_cannot_fit_says_the_sum(world: World) -> None:
    world.manager.entries["a"].needed = 1000
    with pytest.raises(DoesNotFit, match="1000 B"):
        await world.ask("a")


async def test_a_load_by_hand_that_cannot_fit_is_told_at_once(world: World) -> None:
    world.manager.entries["a"].needed = 1000
    with pytest.raises(DoesNotFit, match="1000 B"):
        await asyncio.wait_for(world.manager.load(world.manager.entries["a"]), 2)


async def test_the_line_is_bounded(world: World) -> None:
    world.pool.make = lambda: (e := FakeEngine(), e.load_gate.clear())[0]
    waiting = [asyncio.create_task(world.ask("a")) for _ in range(4)]
    await asyncio.sleep(0.01)
    with pytest.raises(QueueFull) as full:
        await world.ask("a")
    assert full.value.retry_after is not None
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert world.queues["a"].waiting == 0


async def test_pinned_models_stay_and_unload_needs_force(world: World) -> None:
    await world.ask("a")
    entry = world.manager.entries["a"]
    entry.pinned = True
    await world.ask("b")
    await world.ask("c")
    assert "evicted a" not in world.witness.events
    with pytest.raises(Conflict):
        await world.manager.unload(entry)
    await world.manager.unload(entry, force=True)
    assert world.state("a") is ModelState.ABSENT


async def test_nobody_starves_under_a_hot_model(world: World) -> None:
    """Budget for one, `a` asked for without end: `b` is served within patience + drain + load."""
    world.manager.budget = 150
    stop = asyncio.Event()

    async def hot() -> None:
        while not stop.is_set():
            await world.ask("a")

    hots = [asyncio.create_task(hot()) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert await asyncio.wait_for(world.ask("b"), 3)
    stop.set()
    await asyncio.gather(*hots)


async def test_plan_changes_nothing(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    plan = world.manager.plan(world.manager.entries["c"])
    assert [v.id for v in plan.victims] == ["a"]
    assert world.state("a") is ModelState.READY


async def test_a_death_tells_its_cause_and_holds_its_bytes_until_it_is_buried(world: World) -> None:
    held = asyncio.Event()

    async def back(bytes_held: int) -> None:
        assert bytes_held == 100
        await held.wait()

    world.manager._memory_back = back
    await world.ask("a")
    entry = world.manager.entries["a"]
    await world.pool.links[0].end(cause=Cause("engine_hung", "no answer"))
    assert entry.state is ModelState.UNLOADING
    assert entry.bytes == 100
    held.set()
    assert await asyncio.wait_for(world.ask("a"), 2)
    assert entry.failure is not None
    assert entry.failure.cause.code == "engine_hung"
    assert "no answer" in entry.failure.cause.message
    assert world.witness.events == ["loaded a", "died a engine_hung", "loaded a"]


async def test_an_engine_that_does_not_answer_is_ended(world: World) -> None:
    await world.ask("a")
    await world.ask("b")
    world.pool.engines[0].ping_gate.clear()
    watching = asyncio.create_task(world.manager.watch(heartbeat=0.01, hung_after=0.05))
    while "died a engine_hung" not in world.witness.events:
        await asyncio.sleep(0.001)
    watching.cancel()
    assert await asyncio.wait_for(world.ask("a"), 2)
    assert world.state("b") is ModelState.READY
    assert world.witness.events.count("loaded b") == 1


async def test_a_load_that_hangs_is_ended_and_told(world: World) -> None:
    world.pool.make = lambda: (e := FakeEngine(), e.load_gate.clear())[0]
    asking = asyncio.create_task(world.ask("a"))
    while not world.pool.links or not world.pool.links[0].server._loading:
        await asyncio.sleep(0.001)
    world.pool.links[0].server._loading = False  # the loop of the slot does not answer while the load goes on
    watching = asyncio.create_task(world.manager.watch(heartbeat=0.01, hung_after=0.05))
    with pytest.raises(Unavailable, match="died while it loaded"):
        await asyncio.wait_for(asking, 2)
    watching.cancel()


async def test_a_fault_of_our_own_in_a_load_does_not_leave_it_loading(world: World) -> None:
    async def broken(engine: str) -> None:
        raise OSError("no such slot")

    world.pool.take = broken  # type: ignore[assignment]
    with pytest.raises(Unavailable, match="inside the server: OSError"):
        await world.ask("a")
    assert world.state("a") is ModelState.FAILED
    assert world.manager._claims == 0


async def test_a_model_that_grows_counts_as_grown_also_after_a_reload(world: World) -> None:
    await world.ask("a")
    entry = world.manager.entries["a"]
    assert entry.link is not None
    world.manager._grew(entry, entry.link, 90)
    assert entry.bytes == 100
    world.manager._grew(entry, entry.link, 140)
    assert (entry.bytes, entry.needed) == (140, 140)
    await world.ask("b")
    await world.manager.unload(entry)
    await world.ask("a")
    assert entry.bytes == 140
    assert world.witness.events.count("grew a 140") == 1


async def test_an_overdrawn_budget_is_brought_back(world: World) -> None:
    """Two of 100 bytes fit into 250; one of them turns out to hold 180."""
    await world.ask("a")
    await world.ask("b")
    entry = world.manager.entries["b"]
    assert entry.link is not None
    world.manager._grew(entry, entry.link, 180)
    while world.state("a") is not ModelState.ABSENT:
        await asyncio.sleep(0.001)
    assert world.state("b") is ModelState.READY
    assert world.manager.held() == 180


async def test_missing_files_are_fetched_once_when_first_wanted(world: World, tmp_path: Path) -> None:
    entry, other = world.manager.entries["a"], asyncio.Event()
    entry.path, fetched = None, []

    async def fetch(entry: ModelEntry, told: Callable[[int, int | None], None]) -> None:
        fetched.append(entry.id)
        told(1 << 20, 4 << 20)
        assert entry.progress is not None
        assert (entry.state, entry.progress.phase, entry.progress.fraction) == (ModelState.LOADING, "fetching", 0.25)
        await other.wait()
        entry.path = tmp_path

    world.manager.fetch = fetch
    waiting = [asyncio.create_task(world.ask("a")) for _ in range(3)]
    assert await world.ask("b"), "nobody waits behind a download"
    other.set()
    assert all(await asyncio.gather(*waiting))
    assert fetched == ["a"]


async def test_a_hub_that_does_not_answer_is_told_and_asked_again_later(world: World) -> None:
    entry = world.manager.entries["a"]
    entry.path = None

    async def fetch(entry: ModelEntry, told: Callable[[int, int | None], None]) -> None:
        raise Unavailable("The hub did not deliver.", code="hub_unavailable", retry_after=30)

    world.manager.fetch = fetch
    with pytest.raises(Unavailable, match="did not deliver") as refused:
        await world.ask("a")
    assert refused.value.retry_after == 30
    assert world.state("a") is ModelState.FAILED
    with pytest.raises(Unavailable, match="next try"):
        await world.ask("a")
