"""Slots that end and are replaced in a real pool: no request is count_events by a later engine of its slot."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from models.messages import HttpCall
from registry.errors import Unavailable
from runtime.residency.states import ModelState
from runtime.slots import frames
from runtime.slots.link import SlotLink
from runtime.slots.pool import SlotPool
from runtime.slots.server import SlotServer
from tests.fakes.engine import FakeEngine
from tests.fakes.pool import FakeLink
from tests.unit.residency.scripted import World


class Lives:
    """A world with one slot, whose process is replaced as soon as it has ended."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.links: list[FakeLink] = []
        self.folder = folder
        self.pool = SlotPool(self._make, 1, self.world.manager.watcher.died, on_free=self.world.manager.decide)
        self.world.manager.table.pool = self.pool

    def _make(self, slot_id: int, on_death: Callable[[SlotLink], None]) -> SlotLink:
        link = FakeLink(slot_id, str(self.folder / f"{len(self.links)}.sock"), on_death)
        link.server = SlotServer(link.address, lambda *_: FakeEngine(), exit_on_disconnect=False)
        link.task = asyncio.create_task(link.server.serve())
        self.links.append(link)
        return link


@pytest.fixture
async def lives(tmp_path: Path) -> AsyncIterator[Lives]:
    lives = Lives(tmp_path)
    lives.pool.start()
    yield lives
    await lives.world.manager.close()
    await lives.pool.close()
    for link in lives.links:
        if not link.task.done():
            await link.end()


async def count_events(link: SlotLink) -> int:
    async with link.call(
        lambda uid: frames.Call.of(uid, HttpCall(path="/", body=b"", served="a", display_name="a"))
    ) as call:
        return len([event async for event in call.events()])


async def test_a_model_that_dies_after_its_load_is_not_ready(lives: Lives) -> None:
    """On a CPU its memory is measured after the load. Meanwhile it ends, and its slot is replaced."""
    world, first = lives.world, lives.links[0]
    world.manager.table.counts_processes = True

    async def dies_first() -> int:
        await first.crash()
        while not lives.pool.free:
            await asyncio.sleep(0.001)
        return 100

    first.peak_bytes = dies_first  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="could not be loaded"):
        await world.ask("a")
    assert world.state("a") is ModelState.FAILED
    assert await world.ask("b") == [b"data: 0 b\n\n", b"data: 1 b\n\n", b"data: 2 b\n\n"]
    assert world.manager.entries["a"].link is None


async def test_an_old_link_does_not_reach_the_next_process(lives: Lives) -> None:
    world = lives.world
    async with await world.queues["a"].acquire(None) as lease:
        assert await count_events(lease.link)
        await lives.links[0].crash()
        entry = world.manager.entries["a"]
        while not (entry.state is ModelState.READY and entry.loads == 2):
            await asyncio.sleep(0.001)
        assert entry.link is not None
        with pytest.raises(Unavailable, match="is being restarted"):
            await count_events(lease.link)
        await lease.link.end()  # does not end the next process
        assert await count_events(entry.link)
