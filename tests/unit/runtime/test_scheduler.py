"""The line of one model with adapters, over a real socket to a scripted engine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models.messages import AdapterRef, HttpCall
from registry.errors import EngineFailed, Unavailable
from registry.recipe import Recipe
from runtime import frames
from runtime.link import SlotLink
from runtime.scheduler import Bounds, ModelQueue
from tests.fakes.engine import FakeEngine
from tests.fakes.pool import FakePool


def adapter(letter: str, path: str = "/store") -> AdapterRef:
    return AdapterRef(digest="sha256:" + letter * 64, path=f"{path}/{letter}", rank=8, bytes=100)


class World:
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
    w.queue = ModelQueue(recipe, Bounds(100), want=lambda: None, released=lambda: None)
    w.link = await w.pool.take("vllm")
    w.engine = w.pool.engines[0]
    async with w.link.call(lambda uid: frames.Load(uid, recipe.model_dump_json().encode(), "x", "cpu")) as call:
        await call.done()
    w.queue.open(w.link)
    yield w
    await w.pool.close()


async def ask(w: World, ref: AdapterRef | None) -> int:
    async with await w.queue.acquire(ref) as lease:
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
    drop = world.queue._send(gate.wait())  # type: ignore[arg-type]
    world.queue._drops.add(drop)
    waiting = asyncio.create_task(ask(world, adapter("a")))
    await asyncio.sleep(0.01)
    assert world.engine.staged == []
    gate.set()
    assert await waiting == 5


async def test_files_are_looked_at_before_they_are_staged(world: World) -> None:
    async def check(digest: str) -> None:
        raise EngineFailed("its files are gone", code="adapter_damaged")

    world.queue._check = check
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


async def test_a_removed_adapter_is_dropped_from_the_engine(world: World) -> None:
    await ask(world, adapter("a"))
    world.queue.forget_adapter(adapter("a").digest)
    async with asyncio.timeout(2):
        while adapter("a").digest not in world.engine.dropped:
            await asyncio.sleep(0.001)
