"""How a model comes to READY: room is made for it; one that sleeps is woken in its slot."""

import asyncio

from models.messages import Progress
from registry.errors import EngineFailed, RoundhouseError
from runtime.residency.entry import ModelEntry
from runtime.residency.fetching import Fetching
from runtime.residency.table import S, log
from runtime.slots import frames
from runtime.slots.link import SlotLink

WAKE_WITHIN = 120.0
"""Most seconds of one wake."""


class Waking(Fetching):
    async def _wait_for_room(self, entry: ModelEntry, victims: list[ModelEntry]) -> None:
        """Until its bytes are free: the victims leave, and others that are still leaving. Or until it dies asleep."""
        link = entry.link
        if victims:
            entry.progress = Progress(phase="evicting", fraction=0.0, detail=", ".join(v.id for v in victims))
            await asyncio.gather(*(self._leave(v, f"for {entry.id}") for v in victims))
        while entry.link is link and not self._has_room(entry):
            sleeper = self._sleeper_to_end(entry)
            if sleeper is None:
                await self.change()
            else:  # a victim holds more asleep than was planned
                await self._evict(sleeper, f"for {entry.id}")

    def _has_room(self, entry: ModelEntry) -> bool:
        on_host = self.held_on_host(besides=entry) + entry.host_claim
        return self.held(besides=entry) + entry.needed <= self.budget and on_host <= self.host_budget

    def _sleeper_to_end(self, entry: ModelEntry) -> ModelEntry | None:
        """The sleeping model that was used longest ago, when nobody is leaving who might make the room."""
        if any(e.state in (S.DRAINING, S.UNLOADING) for e in self.entries.values()):
            return None
        asleep = [e for e in self.entries.values() if e.state is S.ASLEEP and not e.pinned and e is not entry]
        return min(asleep, key=lambda e: e.last_used, default=None)

    async def _wake(self, entry: ModelEntry, victims: list[ModelEntry]) -> None:
        """From LOADING to READY in the slot in which it slept. One that does not wake is ended and loaded afresh."""
        started, link = entry.clock(), entry.link
        try:
            if link is None:
                raise EngineFailed("The slot of a sleeping model is gone.")
            await self._wait_for_room(entry, victims)
            if entry.link is not link:  # it died asleep, and its slot has another process: `died` sees to the rest
                return
            entry.bytes, entry.host_bytes, entry.claim = entry.needed, entry.host_claim, 0
            entry.progress = Progress(phase="waking", fraction=0.1)
            self._note_change()
            began = entry.clock()
            held = await link.command(frames.Wake, WAKE_WITHIN)
            if held is None:
                raise EngineFailed("The slot ended a wake without saying what it holds.")
        except Exception as error:  # whatever it is, the entry must not stay LOADING for ever
            if entry.link is not link:
                return
            if not isinstance(error, RoundhouseError):
                log.exception("unmapped error in a wake")
                error = EngineFailed(f"The wake failed inside the server: {type(error).__name__}.")
            await self._wake_failed(entry, link, error)
            return
        entry.measured_wake = entry.clock() - began
        entry.bytes = max(entry.needed, held.device_bytes)
        entry.host_bytes = held.host_bytes + entry.host_adapters
        entry.wakes += 1
        self._observer.woke(entry, entry.clock() - started)
        self._open(entry, link)

    async def _wake_failed(self, entry: ModelEntry, link: SlotLink | None, error: RoundhouseError) -> None:
        self._cannot_sleep(entry, "wake", error)
        if link is not None:
            await link.end()
            await self._memory_back(entry.bytes)
        entry.link, entry.loaded, entry.progress = None, None, None
        entry.bytes, entry.claim, entry.host_bytes = 0, 0, 0
        entry.to(S.ABSENT)
        self._note_change()
        self.decide()

    def _open(self, entry: ModelEntry, link: SlotLink) -> None:
        """From LOADING to READY."""
        entry.loaded_at = entry.last_used = entry.clock()
        entry.wanted_since, entry.progress = None, None
        entry.to(S.READY)
        entry.queue.open(link)
        self._note_change()
        self.decide()
