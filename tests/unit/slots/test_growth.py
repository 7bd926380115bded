"""Adding slots to a running server."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from registry.errors import Unavailable
from runtime.config import memory
from runtime.slots.link import SlotLink
from runtime.slots.pool import SlotGrowth, SlotPool
from runtime.slots.server import SlotServer
from tests.fakes.engine import FakeEngine
from tests.fakes.pool import FakeLink


@pytest.mark.parametrize(
    ("most", "fitting", "size", "pending", "room"),
    [(64, 10, 6, 0, 10), (64, 10, 6, 3, 7), (64, 2, 6, 3, 0), (64, 90, 60, 0, 4), (64, 90, 64, 0, 0), (6, 90, 6, 0, 0)],
)
def test_growth_is_bounded_by_number_and_free_memory(
    most: int, fitting: int, size: int, pending: int, room: int
) -> None:
    assert SlotGrowth(most, lambda: None, lambda: fitting).room(size, pending) == room


@pytest.mark.parametrize(("left", "slots"), [(None, 10), (64 << 30, 10), (3 << 30, 3), (-1, 0)])
def test_a_containers_limit_bounds_growth(monkeypatch: pytest.MonkeyPatch, left: int | None, slots: int) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=10 << 30))
    monkeypatch.setattr(memory, "memory_left", lambda: left)
    assert memory.slots_that_fit() == slots


def test_free_memory_is_measured_once_a_second() -> None:
    times, measured = iter([1.0, 1.0, 1.9, 2.1, 2.1]), iter([5, 3])
    growth = SlotGrowth(64, lambda: None, lambda: next(measured), lambda: next(times))
    assert [growth.room(1, 0) for _ in range(3)] == [5, 5, 3]


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


class GrowingPool:
    """A pool of slots in this process. A requested slot starts with `start_slot`."""

    def __init__(self, folder: Path, most: int = 3) -> None:
        self.folder, self.requested, self.changes = folder, 0, 0
        self.links: dict[int, FakeLink] = {}
        self.pool = SlotPool(
            self._make,
            1,
            lambda link: None,
            on_free=self._note,
            growth=SlotGrowth(most, self._request, lambda: 9),
        )

    def _make(self, slot_id: int, on_death: Callable[[SlotLink], None]) -> SlotLink:
        self.links[slot_id] = link = FakeLink(slot_id, str(self.folder / f"{slot_id}.sock"), on_death)
        link.server = SlotServer(link.address, lambda *_: FakeEngine(), exit_on_disconnect=False)
        return link

    def _request(self) -> None:
        self.requested += 1

    def _note(self) -> None:
        self.changes += 1

    def start_slot(self, slot_id: int) -> None:
        link = self.links[slot_id]
        link.task = asyncio.create_task(link.server.serve())

    async def close(self) -> None:
        await self.pool.close()
        for link in self.links.values():
            if hasattr(link, "task") and not link.task.done():
                await link.end()


async def test_one_slot_is_added_at_a_time_after_the_start(tmp_path: Path) -> None:
    growing = GrowingPool(tmp_path)
    pool = growing.pool
    pool.start()
    pool.add_slot()
    assert (pool.addable, growing.requested) == (0, 0), "the first slot has not started yet"
    growing.start_slot(0)
    await until(lambda: pool.free == 1)
    assert pool.addable == 2
    pool.add_slot()
    pool.add_slot()
    assert (pool.size, growing.requested, pool.addable) == (2, 1, 2), "one starting and one more"
    growing.start_slot(1)
    await until(lambda: pool.free == 2)
    assert growing.changes == 2, "loads that wait for a slot are decided again"
    pool.add_slot()
    growing.start_slot(2)
    await until(lambda: pool.free == 3)
    pool.add_slot()
    assert (pool.size, growing.requested, pool.addable) == (3, 2, 0), "the maximum is reached"
    await growing.close()


async def test_an_added_slot_that_ends_is_replaced(tmp_path: Path) -> None:
    growing = GrowingPool(tmp_path)
    pool = growing.pool
    pool.start()
    growing.start_slot(0)
    await until(lambda: pool.free == 1)
    pool.add_slot()
    growing.start_slot(1)
    await until(lambda: pool.free == 2)
    await growing.links[1].crash()
    growing.start_slot(1)
    await until(lambda: pool.free == 2)
    assert (pool.size, pool.restarts, growing.requested) == (2, 1, 1)
    await growing.close()


async def test_no_slot_is_added_while_a_requested_one_fails_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then models are evicted for slots, as with a fixed number."""
    growing = GrowingPool(tmp_path)
    pool = growing.pool
    pool.start()
    growing.start_slot(0)
    await until(lambda: pool.free == 1)
    late = asyncio.Event()
    connect = FakeLink.connect

    async def connect_late(self: FakeLink, timeout: float = 5.0) -> None:
        if not late.is_set():
            late.set()
            raise Unavailable("Slot 1 did not start within 60 s.")
        await connect(self, timeout)

    monkeypatch.setattr(FakeLink, "connect", connect_late)
    pool.add_slot()
    await until(lambda: growing.changes == 2)
    assert (pool.addable, pool.free) == (0, 1), "the decision is made again, without it"
    pool.add_slot()
    assert growing.requested == 1
    growing.start_slot(1)
    await until(lambda: pool.free == 2)
    assert pool.addable == 1
    await growing.close()


def test_a_fixed_number_does_not_grow(tmp_path: Path) -> None:
    pool = GrowingPool(tmp_path, most=1).pool
    fixed = SlotPool(lambda slot_id, on_death: FakeLink(slot_id, "", on_death), 2, lambda link: None)
    fixed.add_slot()
    assert (fixed.size, fixed.addable, pool.size) == (2, 0, 1)
