"""Remove models from memory: drain them, end them or put them to sleep, and wait for their memory."""

import asyncio
from collections.abc import Callable, Iterable

from models.messages import MemoryFootprint, Progress
from registry.errors import EngineFailed, RoundhouseError, Unavailable
from runtime.residency.entry import ModelEntry
from runtime.residency.policy import Victim
from runtime.residency.table import S, Step, Table, log, map_error
from runtime.slots import frames
from runtime.slots.link import SlotLink

ABORT_SECONDS = 5.0
"""Time that requests have to leave after the drain deadline aborted them; then the model is ended anyway."""
MOST_FAILED_SLEEPS = 2
SLEEP_SECONDS = 300.0
"""Timeout of a sleep. The first one pins host memory, which takes about 0.6 s per GB."""


class Drainer:
    """Carries out the departure of models.

    | step                          | from      | to        | otherwise                                          |
    |-------------------------------|-----------|-----------|----------------------------------------------------|
    | dismiss                       | READY     | DRAINING  |                                                    |
    |                               | ASLEEP    | UNLOADING |                                                    |
    | leave: requests have ended,   | DRAINING  | UNLOADING | at the drain deadline they are aborted             |
    | the model is to end           |           |           |                                                    |
    | leave: requests have ended,   | DRAINING  | ASLEEP    | UNLOADING if requests stay, host memory is full,   |
    | the model is to sleep         |           |           | or the engine does not sleep                       |
    | leave: its memory was freed   | UNLOADING | ABSENT    |                                                    |

    If the model dies in between, `leave` returns and the watcher takes over.

    Args:
        decide: called after a model has left, because another one may be waiting for the room.
    """

    def __init__(self, table: Table, decide: Callable[[], None]) -> None:
        self._table, self._decide = table, decide

    def dismiss(self, entry: ModelEntry, sleep: bool = False) -> None:
        """Begin a model's departure: from now on no new request starts."""
        if entry.state is S.ASLEEP:
            entry.to(S.UNLOADING)
        else:
            entry.to(S.DRAINING)
            entry.falling_asleep, entry.asleep_since = sleep, entry.clock()
            entry.progress = Progress(phase="falling asleep", fraction=0.0) if sleep else None
            entry.queue.close()

    def dismiss_all(self, victims: Iterable[Victim]) -> list[ModelEntry]:
        """Dismiss the victims of a plan. Each drains, sleeps or ends according to the plan."""
        entries = []
        for victim in victims:
            entry = self._table.entries[victim.id]
            self.dismiss(entry, victim.action == "sleep")
            entries.append(entry)
        return entries

    async def leave(self, entry: ModelEntry, reason: str) -> None:
        """Complete a dismissed model's departure. Running requests finish or are ended by the deadline."""
        its_link = entry.link
        await self._drain(entry)
        if entry.state is S.DRAINING and entry.falling_asleep and await self._fall_asleep(entry, reason):
            return
        if entry.link is not its_link:  # it died in the meantime, and may have another engine by now
            return
        if entry.state is S.DRAINING:
            entry.falling_asleep, entry.progress = False, None
            entry.to(S.UNLOADING)
        elif entry.state is not S.UNLOADING or entry.link is None:  # it died before this started
            return
        link, entry.link = entry.link, None
        occupied = entry.seen
        entry.queue.engine_gone()
        if link is not None:
            before = await self._table.memory_of(entry).used()
            await link.end()
            await self._table.memory_of(entry).back(occupied, before)
        entry.loaded, entry.bytes, entry.host_bytes = None, 0, 0
        entry.to(S.ABSENT)
        self._table.observer.evicted(entry, reason)
        self.on_absent(entry)

    async def evict(self, entry: ModelEntry, reason: str) -> None:
        self.dismiss(entry)
        await self.leave(entry, reason)
        while entry.state is S.UNLOADING:  # it died in the meantime, and the watcher frees its memory
            await self._table.change()

    def on_absent(self, entry: ModelEntry) -> None:
        """Request the model again if requests arrived in the meantime."""
        self._table.note_change()
        if entry.queue.oldest is not None:
            entry.requested_since = entry.queue.oldest
        self._decide()

    def sleep_failed(self, entry: ModelEntry, step: Step, error: RoundhouseError) -> None:
        """Count and report a failed sleep or wake. In both cases the process is ended."""
        entry.failed_sleeps += 1
        entry.sleepless = step == "wake" or entry.failed_sleeps >= MOST_FAILED_SLEEPS
        log.error(f"{step} failed", extra={"model": entry.id, "cause": error.message, "code": error.code})
        self._table.observer.sleep_failed(entry, step, error)

    async def _drain(self, entry: ModelEntry) -> None:
        deadline = entry.clock() + entry.recipe.residency.drain_deadline
        while entry.queue.running and entry.state is S.DRAINING:
            try:
                async with asyncio.timeout(max(0.0, deadline - entry.clock())):
                    await self._table.change()
            except TimeoutError:
                entry.queue.abort_running(
                    Unavailable(
                        "The model was unloaded before this answer was complete. Try again.",
                        code="drained",
                        retry_after=1,
                    )
                )
                break

    async def _fall_asleep(self, entry: ModelEntry, reason: str) -> bool:
        """Bring a model from DRAINING to ASLEEP. Returns False if it must end instead (if still DRAINING)."""
        link, expected = entry.link, entry.asleep
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                while entry.queue.running and entry.state is S.DRAINING:  # requests aborted by the deadline
                    await self._table.change()
        except TimeoutError:
            return False
        await entry.queue.effects.wait_until_settled()
        if link is None or expected is None or not await self._host_has_room(entry, expected.host_bytes):
            return False
        if entry.state is not S.DRAINING or entry.link is not link:
            return False
        entry.asleep_since, before = entry.clock(), entry.bytes
        entry.host_bytes = max(entry.host_bytes, expected.host_bytes)
        try:
            footprint, seconds = await self._put_to_sleep(entry, link)
        except Exception as error:  # whatever it is, the entry must not stay DRAINING forever
            if entry.state is S.DRAINING and entry.link is link:
                self.sleep_failed(entry, "sleep", map_error(error, "sleep"))
            return False
        if entry.state is not S.DRAINING or entry.link is not link:  # it died in the meantime
            return False
        entry.slept, entry.failed_sleeps = footprint, 0
        entry.bytes, entry.host_bytes, entry.falling_asleep = footprint.device_bytes, footprint.host_bytes, False
        entry.progress = None
        entry.asleep_since = entry.clock()
        entry.naps += 1
        if entry.naps == 1:
            entry.measured_first_sleep = seconds
        else:
            entry.measured_sleep = seconds
        entry.queue.engine_gone()
        entry.to(S.ASLEEP)
        self._table.observer.slept(entry, reason, seconds, before - footprint.device_bytes)
        self.on_absent(entry)
        return True

    async def _put_to_sleep(self, entry: ModelEntry, link: SlotLink) -> tuple[MemoryFootprint, float]:
        """Put a model to sleep. Returns the memory it keeps and the engine's seconds.

        Does not measure the freed device memory: concurrent loads would hide it.
        """
        memory = self._table.memory_of(entry)
        awake, used, began = entry.seen, await memory.used(), entry.clock()
        reply = await link.command(frames.Sleep, SLEEP_SECONDS)
        if reply is None:
            raise EngineFailed("The slot went to sleep without reporting its memory.")
        seconds, on_device = entry.clock() - began, reply.device_bytes
        if self._table.counts_processes:
            on_device = await link.used_bytes() or on_device
        await memory.back(awake - on_device, used)
        return MemoryFootprint(device_bytes=on_device, host_bytes=reply.host_bytes), seconds

    async def _host_has_room(self, entry: ModelEntry, asleep: int) -> bool:
        """Return whether its copy fits into host memory once the departing models have left."""
        table = self._table
        while table.used_host_bytes(besides=entry) + asleep > table.host_budget:
            states = [(e.state, e.falling_asleep) for e in table.entries.values()]
            if not any(state is S.UNLOADING or (state is S.DRAINING and not sleep) for state, sleep in states):
                return False
            await table.change()
        return True
