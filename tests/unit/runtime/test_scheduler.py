"""The line of one model with adapters, over a real socket to a scripted engine."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models.messages import AdapterRef, HttpCall
from registry.errors import EngineFailed, Unavailable
from registry.recipe import Recipe
from registry.records import Probe
from runtime import frames
from runtime.link import SlotLink
from runtime.probes import RETRY_SECONDS
from runtime.scheduler import Bounds, ModelQueue
from tests.fakes.engine import FakeEngine
from tests.fakes.pool import FakePool


def adapter(letter: str, path: str = "/store") -> AdapterRef:
    return AdapterRef(digest="sha256:" + letter * 64, path=f"{path}/{letter}", rank=8, bytes=100)


class Registry:
    """What the gateway knows of adapters; `notes` are the steps that it was told of."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[Probe | None, ...]] = {}
        self.damaged: EngineFailed | None = None
        self.notes: list[tuple[str, str]] = []
        self.gone: list[str] = []

    async def check(self, digest: str) -> None:
        if self.damaged is not None:
            raise self.damaged

    def probes(self, digest: str) -> tuple[Probe | None, ...]:
        return self.known.get(digest, ())

    def dropped(self, digest: str) -> None:
        self.gone.append(digest)

    def note(self, step: str, seconds: float, outcome: str) -> None:
        self.notes.append((step, outcome))


class World:
    registry: Registry
    clock: float = 0.0
    queue: ModelQueue
    engine: FakeEngine
    link: SlotLink
    pool: FakePool


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    w = World()
    recipe = Recipe.model_validate(
        {
            "id": "m", "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"},
            "memory": {"adapters": {"device": 2, "host": 4}}, "batching": {"max_requests": 4},
            "queue": {"max_wait": 2},
        }
    )  # fmt: skip
    w.pool = FakePool(tmp_path, 1, FakeEngine)
    w.registry = Registry()
    w.queue = ModelQueue(
        recipe, Bounds(100), want=lambda: None, released=lambda: None, registry=w.registry,
        clock=lambda: time.monotonic() + w.clock,
    )  # fmt: skip
    w.link = await w.pool.take("vllm")
    w.engine = w.pool.engines[0]
    async with w.link.call(lambda uid: frames.Load(uid, recipe.model_dump_json().encode(), "x", "cpu")) as call:
        await call.done()
    w.queue.open(w.link)
    yield w
    await w.pool.close()


async def ask(w: World, ref: AdapterRef | None, probe: Probe | None = None) -> int:
    async with await w.queue.acquire(ref, probe=probe) as lease:
        call = HttpCall(path="/", body=b"", served="s", shown="s", adapter=ref)
        async with lease.link.call(lambda uid: frames.Call(uid, call)) as answer:
            return len([event async for event in answer.events()])


async def test_an_adapter_is_in_place_before_its_request_starts(world: World) -> None:
    assert await ask(world, adapter("a")) == 5  # the engine refuses an adapter that is in no place
    assert world.engine.places == {adapter("a").digest}


async def test_more_adapters_than_places_take_turns(world: World) -> None:
    answers = await asyncio.gather(*(ask(world, adapter(letter)) for letter in "abcdefabcdef"))
    assert answers == [5] * 12
    assert len(world.engine.places) <= 2


async def test_base_requests_pass_while_an_adapter_is_staged(world: World) -> None:
    waiting = asyncio.create_task(ask(world, adapter("a")))
    assert await ask(world, None) == 5
    assert await waiting == 5


async def test_a_broken_adapter_fails_its_own_requests_only(world: World) -> None:
    bad = AdapterRef(digest="sha256:" + "b" * 64, path="/broken", rank=8, bytes=1)
    results = await asyncio.gather(ask(world, bad), ask(world, adapter("a")), ask(world, bad), return_exceptions=True)
    assert results[1] == 5
    assert all(isinstance(results[i], EngineFailed) and "broken" in str(results[i]) for i in (0, 2))
    assert await ask(world, adapter("c")) == 5


async def test_a_place_that_is_still_in_use_is_asked_for_again(world: World) -> None:
    world.engine.conflicts = 3
    assert await ask(world, adapter("a")) == 5
    assert world.engine.conflicts == 0


async def test_staging_waits_for_the_drops_that_make_room(world: World) -> None:
    gate = asyncio.Event()
    drop = world.queue.effects._send(gate.wait())  # type: ignore[arg-type]
    world.queue.effects._drops.add(drop)
    waiting = asyncio.create_task(ask(world, adapter("a")))
    await asyncio.sleep(0.01)
    assert world.engine.staged == []
    gate.set()
    assert await waiting == 5


async def test_files_are_looked_at_before_they_are_staged(world: World) -> None:
    world.registry.damaged = EngineFailed("its files are gone", code="adapter_damaged")
    with pytest.raises(EngineFailed, match="files are gone"):
        await ask(world, adapter("a"))
    assert world.engine.staged == []


async def test_a_new_engine_gets_the_waiting_requests_adapters_again(world: World, tmp_path: Path) -> None:
    await ask(world, adapter("a"))
    world.queue.engine_gone()
    waiting = asyncio.create_task(ask(world, adapter("a")))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    world.engine.places.clear()
    world.queue.open(world.link)
    assert await waiting == 5


async def test_waiting_is_bounded_in_time(world: World) -> None:
    world.queue.close()
    with pytest.raises(Unavailable, match="no room") as error:
        await world.queue.acquire(None, max_wait=0.02)
    assert error.value.retry_after is not None
    assert world.queue.waiting == 0


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(world: World) -> None:
    world.queue.close()
    task = asyncio.create_task(ask(world, adapter("a")))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (world.queue.waiting, world.queue.running) == (0, 0)
    world.queue.open(world.link)
    assert await ask(world, None) == 5


@pytest.mark.parametrize("how", ["leaves", "time-out"])
async def test_a_client_that_leaves_in_the_moment_of_its_turn_holds_nothing(world: World, how: str) -> None:
    world.queue.close()
    task = asyncio.create_task(world.queue.acquire(None, max_wait=0.0 if how == "time-out" else None))
    await asyncio.sleep(0)
    world.queue.open(world.link)  # its turn; it will hear of it in the loop's next round
    if how == "leaves":
        task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, Unavailable if how == "time-out" else asyncio.CancelledError)
    assert (world.queue.running, world.queue.waiting) == (0, 0)
    assert await ask(world, None) == 5


async def test_a_removed_adapter_is_dropped_from_the_engine(world: World) -> None:
    await ask(world, adapter("a"))
    world.queue.forget_adapter(adapter("a").digest)
    await dropped(world, adapter("a"))


RIGHT, WRONG = Probe("say it", "fine"), Probe("say it", "other")
"""The scripted engine answers 'fine' to every probe."""


def probes_asked(w: World) -> list[tuple[str, str]]:
    return [note for note in w.registry.notes if note[0] == "probe"]


async def test_a_probe_is_asked_after_each_commit_and_before_any_request(world: World) -> None:
    world.registry.known[adapter("a").digest] = (RIGHT,)
    assert await ask(world, adapter("a"), RIGHT) == 5
    assert world.engine.answered[0] == ("probe", adapter("a").digest)
    assert await ask(world, adapter("a"), RIGHT) == 5
    assert probes_asked(world) == [("probe", "passed")]
    for letter in "bc":  # takes the place away
        assert await ask(world, adapter(letter)) == 5
    assert await ask(world, adapter("a"), RIGHT) == 5
    assert probes_asked(world) == [("probe", "passed")] * 2


async def test_a_wrong_probe_takes_the_adapter_out_and_refuses_its_requests_only(world: World) -> None:
    world.registry.known[adapter("a").digest] = (WRONG,)
    results = await asyncio.gather(
        ask(world, adapter("a"), WRONG), ask(world, adapter("b")), ask(world, adapter("a"), WRONG), ask(world, None),
        return_exceptions=True,
    )  # fmt: skip
    assert results[1] == results[3] == 5
    for failed in (results[0], results[2]):
        assert isinstance(failed, Unavailable)
        assert failed.code == "adapter_probe_failed"
        assert failed.retry_after is not None
        assert "'other'" in failed.message
        assert "'f'" in failed.message, "it was asked no further than the first letter that differs"
        assert RIGHT.prompt not in failed.message
    assert ("probe", "failed") in world.registry.notes
    await dropped(world, adapter("a"))
    assert world.engine.places == {adapter("b").digest}
    assert adapter("a").digest not in [digest for kind, digest in world.engine.answered if kind == "call"]


async def test_a_failed_probe_costs_no_places_until_it_is_time_to_try_again(world: World) -> None:
    world.registry.known[adapter("a").digest] = (WRONG,)
    for _ in range(3):
        with pytest.raises(Unavailable, match="probe"):
            await ask(world, adapter("a"), WRONG)
    assert world.engine.staged.count(adapter("a").digest) == 1
    world.clock += RETRY_SECONDS + 1
    with pytest.raises(Unavailable, match="probe"):
        await ask(world, adapter("a"), WRONG)
    assert world.engine.staged.count(adapter("a").digest) == 2
    world.registry.known[adapter("a").digest] = (RIGHT,)  # registered again with a corrected probe
    assert await ask(world, adapter("a"), RIGHT) == 5


async def test_one_name_with_a_wrong_probe_does_not_take_equal_content_from_another(world: World) -> None:
    world.registry.known[adapter("a").digest] = (WRONG, None)
    results = await asyncio.gather(ask(world, adapter("a"), WRONG), ask(world, adapter("a")), return_exceptions=True)
    assert isinstance(results[0], Unavailable)
    assert results[1] == 5
    assert adapter("a").digest in world.engine.places


async def test_a_probe_that_came_after_the_commit_is_asked_by_its_first_request(world: World) -> None:
    assert await ask(world, adapter("a")) == 5
    assert probes_asked(world) == []
    results = await asyncio.gather(*(ask(world, adapter("a"), WRONG) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)
    assert await ask(world, adapter("a"), RIGHT) == 5
    assert world.queue.running == 0
    assert [kind for kind, _ in world.engine.answered].count("probe") == 2


async def test_a_probe_that_the_engine_cannot_answer_fails_the_adapter(world: World) -> None:
    world.registry.known[adapter("a").digest] = (RIGHT,)
    world.engine.probe_status = 400
    with pytest.raises(Unavailable, match="HTTP 400"):
        await ask(world, adapter("a"), RIGHT)
    assert await ask(world, None) == 5


async def test_a_pinned_adapter_that_fails_is_not_tried_for_ever(world: World) -> None:
    world.registry.known[adapter("a").digest] = (WRONG,)
    world.queue.pin_adapter(adapter("a"))
    await dropped(world, adapter("a"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert await ask(world, adapter("b")) == 5
    assert world.engine.staged.count(adapter("a").digest) == 1


async def test_a_new_engine_is_probed_again(world: World) -> None:
    world.registry.known[adapter("a").digest] = (WRONG,)
    with pytest.raises(Unavailable):
        await ask(world, adapter("a"), WRONG)
    world.queue.engine_gone()
    world.engine.places.clear()
    world.engine.staged.clear()
    world.engine.probe_answer = "other words"  # longer than what is expected
    world.queue.open(world.link)
    assert await ask(world, adapter("a"), WRONG) == 5


async def test_a_removed_adapter_does_not_break_those_who_still_wait_for_it(world: World) -> None:
    world.engine.gate.clear()
    running = [asyncio.create_task(ask(world, adapter("a"))) for _ in range(6)]  # four run, two wait
    while world.engine.running < 4:
        await asyncio.sleep(0.001)
    world.queue.forget_adapter(adapter("a").digest)
    assert world.registry.gone == []
    world.engine.gate.set()
    assert await asyncio.gather(*running) == [5] * 6
    await dropped(world, adapter("a"))
    async with asyncio.timeout(2):
        while world.registry.gone != [adapter("a").digest]:
            await asyncio.sleep(0.001)


async def dropped(w: World, ref: AdapterRef) -> None:
    async with asyncio.timeout(2):
        while ref.digest not in w.engine.dropped:
            await asyncio.sleep(0.001)
