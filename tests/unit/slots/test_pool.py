"""Prewarmed slots: one per engine, used for the right model, and ended if their memory is needed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from registry.errors import Unavailable
from runtime.slots.link import SlotLink
from runtime.slots.pool import SlotPool
from runtime.slots.server import SlotServer
from tests.fakes.engine import FakeEngine
from tests.fakes.pool import FakeLink


def in_process(pool: SlotPool, warms: str | None = None) -> list[FakeLink]:
    """Return the pool's slots, run in this process. The first one imports `warms` at its start."""
    links = []
    for link in pool._links:
        assert isinstance(link, FakeLink)
        link.server = SlotServer(
            link.address, lambda *_: FakeEngine(), exit_on_disconnect=False, warms=None if links else warms
        )
        links.append(link)
    return links


def fake_links(folder: Path) -> Callable[[int, Callable[[SlotLink], None]], SlotLink]:
    return lambda slot_id, on_death: FakeLink(slot_id, str(folder / f"{slot_id}.sock"), on_death)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[SlotPool]:
    """Yield a pool of three slots in this process. Prewarming imports nothing, as their engines do not exist."""
    pool = SlotPool(fake_links(tmp_path), 3, lambda link: None)
    links = in_process(pool)
    for fake in links:
        fake.task = asyncio.create_task(fake.server.serve())
    pool.start()
    while pool.free < 3:
        await asyncio.sleep(0.001)
    yield pool
    await pool.close()
    for fake in links:
        if not fake.task.done():
            await fake.end()


async def test_a_load_waits_for_the_slot_that_is_importing_its_engine(tmp_path: Path) -> None:
    reported: list[int] = []
    pool: SlotPool = SlotPool(
        fake_links(tmp_path),
        2,
        lambda link: None,
        engines_at_start=("engine-a",),
        on_free=lambda: reported.append(pool.free),  # type: ignore[attr-defined]
    )
    slow, quick = in_process(pool, warms="engine-a")
    quick.task = asyncio.create_task(quick.server.serve())
    pool.start()
    while pool.free < 1:
        await asyncio.sleep(0.001)
    assert reported == [1]
    load = asyncio.create_task(pool.take("engine-a"))
    await asyncio.sleep(0.01)
    assert not load.done(), "a slot is free, but does not import the engine"
    slow.task = asyncio.create_task(slow.server.serve())
    assert (await asyncio.wait_for(load, 200)).slot_id == 0
    assert (await pool.take("engine-a")).slot_id == 1, "no slot is importing it any more"
    await pool.close()
    for fake in (slow, quick):
        await fake.end()


async def test_a_load_does_not_wait_for_an_importing_slot_that_is_overdue(tmp_path: Path) -> None:
    pool = SlotPool(fake_links(tmp_path), 2, lambda link: None, engines_at_start=("engine-a",))
    overdue, quick = in_process(pool, warms="engine-a")
    late = asyncio.Event()

    async def connect(timeout: float = 0.0) -> None:
        if late.is_set():
            await asyncio.Event().wait()
        await late.wait()
        raise Unavailable("Slot 0 did not start.")

    overdue.connect = connect  # type: ignore[method-assign]
    quick.task = asyncio.create_task(quick.server.serve())
    pool.start()
    while pool.free < 1:
        await asyncio.sleep(0.001)
    load = asyncio.create_task(pool.take("engine-a"))
    await asyncio.sleep(0.01)
    assert not load.done()
    late.set()
    assert await asyncio.wait_for(load, 200) is quick
    with pytest.raises(Unavailable, match="No slot became free in time"):
        await pool.take("engine-a", timeout=0.01)
    await pool.close()
    await quick.end()


async def test_a_slot_that_ends_after_the_pool_is_not_restarted(pool: SlotPool) -> None:
    [first, *_] = pool._links
    await pool.close()
    await first.end()
    assert (pool.restarts, pool._links[0], pool._connecting) == (0, first, set())


async def test_each_engine_has_one_slot_which_its_load_takes(pool: SlotPool) -> None:
    assert await pool.prewarm("engine-a")
    assert await pool.prewarm("engine-a")
    assert await pool.prewarm("engine-b")
    assert [link.prewarmed for link in pool.prewarmed()] == ["engine-a", "engine-b"]
    assert all(link.warm for link in pool.prewarmed())
    taken = await pool.take("engine-b")
    assert (taken.slot_id, taken.warm) == (1, False)
    assert [link.prewarmed for link in pool.prewarmed()] == ["engine-a"]
    cold = await pool.take("engine-c")
    assert cold.slot_id == 2, "a slot prewarmed for another engine is taken last"


async def test_a_slot_is_warm_once_its_import_has_ended(pool: SlotPool, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr("models.engines.prewarm", lambda engine, hurried=None: ended.wait(200))
    warming = asyncio.create_task(pool.prewarm("engine-a"))
    while not pool.prewarmed():
        await asyncio.sleep(0.001)
    assert [link.warm for link in pool.prewarmed()] == [False]
    ended.set()
    assert await warming
    assert [link.warm for link in pool.prewarmed()] == [True]


async def test_a_slot_whose_import_is_late_is_prewarmed_later(pool: SlotPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports take minutes on a busy machine."""
    ended = threading.Event()
    monkeypatch.setattr("models.engines.prewarm", lambda engine, hurried=None: ended.wait(200))
    with monkeypatch.context() as hurried:
        hurried.setattr("runtime.slots.pool.PREWARM_SECONDS", 0.01)
        assert not await pool.prewarm("engine-a")
    assert pool.prewarmed() == []
    ended.set()
    assert await pool.prewarm("engine-a")


async def test_a_failed_import_of_an_engine_is_not_repeated(pool: SlotPool, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []

    def fail(engine: str) -> None:
        requested.append(engine)
        raise ImportError(engine)

    monkeypatch.setattr("models.engines.prewarm", fail)
    assert not await pool.prewarm("engine-a")
    assert not await pool.prewarm("engine-a")
    assert requested == ["engine-a"]


async def test_a_slot_that_imports_from_its_start_is_used_for_prewarming(
    pool: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[str] = []
    monkeypatch.setattr("models.engines.prewarm", requested.append)
    beginning = pool._links[2]
    beginning.prewarmed = "engine-a"  # as in its greeting
    assert await pool.prewarm("engine-a")
    assert (pool.prewarmed(), beginning.warm, requested) == ([beginning], True, ["engine-a"])


async def test_warm_slots_are_ended_when_a_load_needs_their_memory(pool: SlotPool) -> None:
    for engine in ("engine-a", "engine-b", "engine-c"):
        await pool.prewarm(engine)
    for link in pool.prewarmed():
        link.prewarmed_bytes = 100
    await pool.cool(room=300, keep="engine-b")
    assert len(pool.prewarmed()) == 3, "everything fits"
    await pool.cool(room=100, keep="engine-b")
    assert [link.prewarmed for link in pool.prewarmed()] == ["engine-b", "engine-c"]
    await pool.cool(room=0, keep="engine-b")
    assert [link.prewarmed for link in pool.prewarmed()] == ["engine-b"]
    assert (await pool.take("engine-b")).prewarmed is None


async def test_a_slot_taken_while_another_one_ends_is_not_ended(
    pool: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine in ("engine-a", "engine-b", "engine-c"):
        await pool.prewarm(engine)
    first, second, third = pool.prewarmed()
    for link in (first, second, third):
        link.prewarmed_bytes = 100
    end = first.end

    async def slow_end() -> None:
        assert await pool.take("engine-b") is second
        await end()

    monkeypatch.setattr(first, "end", slow_end)
    await pool.cool(room=0)
    assert [link.connected for link in (first, second, third)] == [False, True, False]
