"""All slots of the server: empty, with a model, or restarting; and how many may be added while it runs."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from models.engines import prewarmed_bytes
from registry.errors import EngineFailed, Unavailable
from runtime.config.memory import slots_that_fit
from runtime.slots import frames
from runtime.slots.link import SlotLink

log = logging.getLogger("roundhouse.pool")
PREWARM_SECONDS = 120.0
"""Longest wait for a slot's imports. A late slot continues importing, and can be waited for again."""


MEASURE_SECONDS = 1.0
"""Seconds for which a measurement of free memory is cached, because the policy may need it at each decision."""


class SlotGrowth:
    """Limits how many slots may be added, and requests them.

    Args:
        most: maximum number of slots.
        start: makes the server's main process start the next slot. Returns at once.
        fit: number of slots that fit into free memory.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        most: int,
        start: Callable[[], None],
        fit: Callable[[], int] = slots_that_fit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._fit, self._clock = most, fit, clock
        self.start = start
        self._fitting, self._until = 0, 0.0

    def room(self, size: int, pending: int) -> int:
        """Return how many slots may be added to `size`. pending: slots among them that do not use their memory yet."""
        if size >= self._most:
            return 0
        if self._clock() >= self._until:
            self._fitting, self._until = self._fit(), self._clock() + MEASURE_SECONDS
        return max(0, min(self._most - size, self._fitting - pending))


class SlotPool:
    """Hands out empty slots and takes ended ones back.

    Args:
        make: creates the link to the next process of a slot, from the slot's number and a callback for the end of that
            process.
        size: number of slots; each holds one model.
        on_death: called with the link of a slot that ended while it was handed out.
        engines_at_start: engines whose libraries the slots' first processes import by themselves, one each.
        on_free: called when a slot has started and is empty, and when an added one fails to start in time.
        growth: adds slots while the server runs; None if their number is fixed.
    """

    def __init__(
        self,
        make: Callable[[int, Callable[[SlotLink], None]], SlotLink],
        size: int,
        on_death: Callable[[SlotLink], None],
        engines_at_start: Sequence[str] = (),
        on_free: Callable[[], None] = lambda: None,
        growth: SlotGrowth | None = None,
    ) -> None:
        self._growth = growth
        self._added: set[int] = set()  # requested slots that have not started yet
        self._overdue: set[int] = set()  # requested slots that did not start in time
        self._make, self._on_death, self._on_free = make, on_death, on_free
        self._unsettled = set(range(size))
        self._awaited = set(engines_at_start[:size])  # engines whose slot has not reported yet
        self._links = [make(i, self._died) for i in range(size)]
        self._free: set[SlotLink] = set()
        self._changed = asyncio.Condition()
        self._connecting: set[asyncio.Task[None]] = set()
        self._unwarmable: set[str] = set()
        self._closed = False
        self.restarts = 0

    @property
    def size(self) -> int:
        return len(self._links)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def addable(self) -> int:
        """The number of slots that may be added, including one that is starting.

        0 while the initial slots are starting, and while a requested slot is overdue.
        """
        if self._growth is None or self._overdue or self._unsettled - self._added:
            return 0
        return len(self._added) + self._growth.room(self.size, len(self._connecting))

    def add_slot(self) -> None:
        """Request one more slot, unless one is starting or none may be added."""
        if self._added or not self.addable or self._growth is None:
            return
        number = self.size
        log.info("one more slot is requested", extra={"slots": number + 1})
        self._added.add(number)
        self._unsettled.add(number)
        self._growth.start()
        link = self._make(number, self._died)
        self._links.append(link)
        self._connect(link)

    def start(self) -> None:
        for link in self._links:
            self._connect(link)

    def _connect(self, link: SlotLink) -> None:
        async def connect() -> None:
            while not self._closed:
                try:
                    await link.connect()
                    break
                except Unavailable as error:
                    log.error("%s", error.message)
                    async with self._changed:  # loads stop waiting for this one
                        self._mark_settled(link)
                        self._changed.notify_all()
                    if link.slot_id in self._added:  # a load that waits for it makes room instead
                        self._added.discard(link.slot_id)
                        self._overdue.add(link.slot_id)
                        self._on_free()
            async with self._changed:
                self._mark_settled(link)
                if link.connected:  # otherwise it has already ended again
                    self._free.add(link)
                self._changed.notify_all()
            self._on_free()

        task = asyncio.create_task(connect(), name=f"connect-slot-{link.slot_id}")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _mark_settled(self, link: SlotLink) -> None:
        """Note that a slot has started or is overdue."""
        self._unsettled.discard(link.slot_id)
        if link.connected:
            self._added.discard(link.slot_id)
            self._overdue.discard(link.slot_id)
        if link.prewarmed is not None:
            self._awaited.discard(link.prewarmed)
        if not self._unsettled:
            self._awaited.clear()

    def _died(self, link: SlotLink) -> None:
        if self._closed:
            return
        self.restarts += 1
        if link in self._free:
            self._free.discard(link)
        else:
            self._on_death(link)  # a cooled slot belongs to no model
        self._links[link.slot_id] = following = self._make(link.slot_id, self._died)
        self._connect(following)

    async def take(self, engine: str, timeout: float = 60.0) -> SlotLink:
        """Take an empty slot, preferably one with this engine's libraries imported.

        Raises Unavailable if none becomes free within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: self._free and engine not in self._awaited)
                link = min(self._free, key=lambda s: (s.prewarmed != engine, s.prewarmed is not None, not s.warm))
                self._free.discard(link)
                link.cold()
                return link
        except TimeoutError:
            raise Unavailable("No slot became free in time. Raise the number of slots.", retry_after=5) from None

    async def prewarm(self, engine: str) -> bool:
        """Import an engine's libraries in an empty slot; return whether one is warm afterwards."""
        importing = [link for link in self._free if link.prewarmed == engine]
        if any(link.warm for link in importing):
            return True
        if engine in self._unwarmable:
            return False
        empty = sorted((link for link in self._free if link.prewarmed is None), key=lambda s: s.slot_id)
        link = next(iter([*importing, *empty]), None)  # a slot still importing since its start answers after that
        if link is None:
            return False
        link.prewarmed, link.prewarmed_bytes = engine, prewarmed_bytes(engine)
        try:
            await link.command(lambda uid: frames.Prewarm(uid, engine), timeout=PREWARM_SECONDS)
        except Exception as error:  # a slot that cannot be pre-warmed can still load, only slower
            log.warning("pre-warming slot %d for %s failed", link.slot_id, engine, exc_info=True)
            is_late = isinstance(error, EngineFailed) and error.code == "engine_hung"
            if link.connected and not is_late:  # the libraries cannot be imported, so retrying would not help
                self._unwarmable.add(engine)
            link.cold()
            return False
        if link in self._free and link.prewarmed == engine:
            link.warm = True
            link.prewarmed_bytes = await link.peak_bytes() or link.prewarmed_bytes
        return True

    def prewarmed(self) -> list[SlotLink]:
        """Return the empty slots with imported libraries, including those still importing (not yet `warm`)."""
        return sorted((link for link in self._free if link.prewarmed is not None), key=lambda link: link.slot_id)

    async def cool(self, room: int, keep: str | None = None) -> None:
        """End warm slots until the rest holds at most `room` bytes. One slot for engine `keep` stays."""
        spared = next((link for link in self.prewarmed() if link.prewarmed == keep), None)
        while rest := [link for link in self.prewarmed() if link is not spared]:  # loads take some meanwhile
            if sum(link.prewarmed_bytes for link in rest) <= room:
                return
            link = rest[0]
            log.info("ending a pre-warmed slot to free memory", extra={"slot": link.slot_id, "engine": link.prewarmed})
            self._free.discard(link)
            link.cold()
            await link.end()

    async def close(self) -> None:
        """Stop connecting. LitServe ends the slots themselves."""
        self._closed = True
        for task in list(self._connecting):
            task.cancel()
