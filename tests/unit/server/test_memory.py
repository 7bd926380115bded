"""Memory of a GPU counts as free only once the GPU shows it as free."""

import asyncio

import pytest

from runtime.config import device
from runtime.config.device import GpuMemory

GIB = 2**30


class Card:
    """A GPU with `used_bytes` in use, which counts the reads of that figure."""

    def __init__(self, used: int) -> None:
        self.used_bytes, self.reads = used, 0

    def read(self) -> int:
        self.reads += 1
        return self.used_bytes


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(device, "MAX_WAIT_SECONDS", 200)


async def further_reads(card: Card, times: int = 3) -> None:
    """Wait until the card was read `times` more, so that every waiter has seen the current figure."""
    until = card.reads + times
    async with asyncio.timeout(200):
        while card.reads < until:
            await asyncio.sleep(0.001)


async def test_memory_is_free_once_nine_tenths_of_it_have_left_the_card() -> None:
    card = Card(40 * GIB)
    watch = GpuMemory(card.read)
    before = await watch.used()
    waiting = asyncio.create_task(watch.back(20 * GIB, before))
    await further_reads(card)
    assert not waiting.done(), "an empty half of the card proves nothing"
    card.used_bytes = 25 * GIB
    await further_reads(card)
    assert not waiting.done()
    card.used_bytes = 22 * GIB
    await asyncio.wait_for(waiting, 200)


async def test_memory_freed_before_the_first_read_is_seen_by_an_earlier_read() -> None:
    """The process ended and its memory was freed before `back` is called, which is the usual case."""
    card = Card(40 * GIB)
    watch = GpuMemory(card.read)
    before = await watch.used()
    card.used_bytes = 20 * GIB
    await asyncio.wait_for(watch.back(20 * GIB, before), 200)


async def test_after_a_death_earlier_heartbeats_count() -> None:
    card = Card(40 * GIB)
    watch = GpuMemory(card.read)
    await watch.used()
    card.used_bytes = 20 * GIB
    await watch.used()  # a heartbeat between the death and its detection
    await asyncio.wait_for(watch.back(20 * GIB, None), 200)


async def test_one_fall_is_not_counted_twice() -> None:
    card = Card(70 * GIB)
    watch = GpuMemory(card.read)
    before = await watch.used()
    one, two = (asyncio.create_task(watch.back(held * GIB, before)) for held in (20, 30))
    await further_reads(card, 4)
    card.used_bytes = 40 * GIB
    done, waiting = await asyncio.wait({one, two}, return_when=asyncio.FIRST_COMPLETED)
    await further_reads(card)
    assert (len(done), len(waiting)) == (1, 1)
    card.used_bytes = 20 * GIB
    await asyncio.wait_for(asyncio.gather(one, two), 200)


async def test_the_wait_for_memory_that_is_never_freed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "MAX_WAIT_SECONDS", 0.01)
    card = Card(40 * GIB)
    await asyncio.wait_for(GpuMemory(card.read).back(20 * GIB, 40 * GIB), 200)


async def test_a_driver_without_figures_delays_nothing() -> None:
    def read() -> int:
        raise RuntimeError("NVML")

    watch = GpuMemory(read)
    assert await watch.used() is None
    await asyncio.wait_for(watch.back(20 * GIB, None), 200)
    await asyncio.wait_for(watch.back(20 * GIB, 40 * GIB), 200)
