"""Engines that die or hang: noticed, told with the reason, brought back; the other models do not notice."""

import asyncio

from registry.errors import EngineFailed, RoundhouseError
from runtime.residency import policy
from runtime.residency.entry import ModelEntry
from runtime.residency.leaving import Leaving
from runtime.residency.table import S, log
from runtime.slots import frames
from runtime.slots.death import Cause
from runtime.slots.link import SlotLink, gone

GONE_SECONDS = 30.0
PINGED = frozenset({S.READY, S.LOADING, S.DRAINING, S.ASLEEP})
CRASH_LOOP = 3
"""Deaths in ten minutes after which a model is no longer brought back without a request for it."""


class Recovery(Leaving):
    """What happens to a model without anybody's wish: death, hanging, idleness, growth."""

    def _grew(self, entry: ModelEntry, link: SlotLink, held: int) -> None:
        """A full step takes more than the load did: that counts from now on, and for the next load."""
        if entry.link is link and entry.state is S.READY and held > entry.bytes:
            entry.peak = entry.bytes = entry.needed = held
            entry.needed_detail = "as measured while it served"
            self._observer.grew(entry)
            self.decide()

    def died(self, link: SlotLink) -> None:
        """A slot's process ended by itself or was killed; `link.cause` tells how."""
        entry = next((e for e in self.entries.values() if e.link is link), None)
        if entry is None:
            return
        waits = entry.state is S.LOADING and entry.claim > 0  # asleep still, until there is room for its wake
        if entry.state not in (S.READY, S.ASLEEP, S.DRAINING) and not waits:
            return  # a load or a wake notices by its call's error
        reason = link.cause
        unused = entry.state is S.ASLEEP or waits or (entry.falling_asleep and not entry.queue.running)
        entry.deaths += 1
        entry.link, entry.loaded, entry.progress = None, None, None
        entry.falling_asleep, entry.claim = False, 0
        entry.to(S.UNLOADING)
        entry.queue.engine_gone()
        self._observer.died(entry, reason.code)
        log.error(
            "engine died",
            extra={"model": entry.id, "deaths": entry.deaths, "reason": reason.code, "cause": reason.text},
        )
        self._note_change()
        self._spawn(self._bury(entry, link.group, None if unused else reason), f"bury-{entry.id}")

    async def _bury(self, entry: ModelEntry, group: int, reason: Cause | None) -> None:
        """Count its memory as free once its last process is gone, then bring it back.

        No `reason`: it served nobody, since it slept. It is on disk now, and nobody has to wait before its next load.
        """
        if group and not await gone(group, GONE_SECONDS):
            log.error("processes do not end", extra={"model": entry.id, "group": group})
        await self._memory_back(entry.bytes)
        entry.bytes, entry.host_bytes, entry.wanted_since = 0, 0, None  # the back-off counts for those who wait, too
        if reason is None:
            entry.to(S.ABSENT)
            self._asked_again(entry)
            return
        entry.to(S.FAILED)
        failure = entry.fail(EngineFailed(f"The engine of '{entry.id}' died: {reason.text}.", code=reason.code))
        self._note_change()
        if len(entry.failures) == 1:
            self._bring_back(entry)
        elif len(entry.failures) <= CRASH_LOOP or entry.queue.waiting:
            asyncio.get_running_loop().call_later(failure.until - failure.at, self._bring_back, entry)
        self.decide()

    def _bring_back(self, entry: ModelEntry) -> None:
        if entry.state is S.FAILED and entry.wanted_since is None:
            oldest = entry.queue.oldest
            entry.wanted_since = entry.clock() if oldest is None else oldest
            self.decide()

    async def watch(self, heartbeat: float = 5.0, hung_after: float = 30.0) -> None:
        """For ever: idle time-outs and heartbeats, also of slots that are loading or asleep."""
        while True:
            await asyncio.sleep(heartbeat)
            for entry in self.entries.values():
                if self._is_idle(entry):
                    self._retire(entry)
                elif entry.state in PINGED and entry.link is not None:
                    self._spawn(self._ping(entry, entry.link, hung_after), f"ping-{entry.id}")

    def _is_idle(self, entry: ModelEntry) -> bool:
        """Unused for its time-out; asleep: for another one since it fell asleep."""
        timeout = entry.recipe.residency.idle_timeout
        busy = entry.pinned or entry.queue.running or entry.wanted_since is not None
        since = entry.asleep_since if entry.state is S.ASLEEP else entry.last_used
        return bool(timeout) and entry.state in (S.READY, S.ASLEEP) and not busy and entry.clock() - since > timeout

    def _retire(self, entry: ModelEntry) -> None:
        """It sleeps, if it can and host memory has room once those that slept before it have ended; else it ends."""
        older = policy.to_sleep(self._snapshot(), entry.id)
        for other in self._dismiss_all(older or ()):
            self._spawn(self._leave(other, f"host memory for {entry.id}"), f"room-{other.id}")
        self._dismiss(entry, sleep=older is not None)
        self._spawn(self._leave(entry, "idle"), f"idle-{entry.id}")

    def _snapshot(self) -> policy.Snapshot:
        raise NotImplementedError

    async def _ping(self, entry: ModelEntry, link: SlotLink, hung_after: float) -> None:
        if sum(task.get_name() == f"ping-{entry.id}" for task in self._tasks) > 1:
            return  # the one before has not been answered yet
        try:
            await link.command(frames.Ping, hung_after)
            if self.counts_processes:
                self._grew(entry, link, await asyncio.to_thread(link.peak.read))
        except RoundhouseError as error:
            if entry.link is link and link.connected and entry.state in PINGED:
                log.error("heartbeat failed", extra={"model": entry.id, "cause": error.message})
                await link.end(cause=Cause.of(error))
