"""How models leave: they drain, their process ends or their engine sleeps, their memory is seen to be back."""

import asyncio
from collections.abc import Iterable

from registry.errors import Conflict, EngineFailed, RoundhouseError, Unavailable
from runtime.residency.entry import ModelEntry
from runtime.residency.policy import Victim
from runtime.residency.table import S, Step, Table, log
from runtime.slots import frames
from runtime.slots.death import Cause
from runtime.slots.link import SlotLink
from runtime.slots.memory import group_bytes

ABORT_SECONDS = 5.0
"""How long requests that the drain deadline has ended may take to leave; after that the model ends, too."""
SLEEP_SECONDS = 300.0
"""Most seconds of one sleep: the first one pins host memory, which takes about 0.6 s for each GB."""


class Leaving(Table):
    """
    | method    | READY                        | ASLEEP         | LOADING, DRAINING, UNLOADING | ABSENT, FAILED  |
    |-----------|------------------------------|----------------|------------------------------|-----------------|
    | unload    | drains, then ends the slot   | ends the slot  | waits for it, then as it is  | nothing to do   |
    """

    counts_processes = False
    """Whether a model's bytes are those of its processes: on a CPU."""

    async def unload(self, entry: ModelEntry, force: bool = False) -> None:
        """Unload by hand: running requests finish first. Raises Conflict when it is pinned and not forced."""
        if entry.pinned and not force:
            raise Conflict(f"Model '{entry.id}' is pinned. Unpin it first, or send force=true.", code="model_pinned")
        while entry.state in (S.LOADING, S.UNLOADING, S.DRAINING):
            await self.change()
        if entry.state in (S.READY, S.ASLEEP):
            await self._evict(entry, "by hand")

    async def _evict(self, entry: ModelEntry, reason: str) -> None:
        self._dismiss(entry)
        await self._leave(entry, reason)

    def _dismiss(self, entry: ModelEntry, sleep: bool = False) -> None:
        """The decision that it leaves takes effect at once: no new request starts. `_leave` does the rest."""
        if entry.state is S.ASLEEP:
            entry.to(S.UNLOADING)
        else:
            entry.to(S.DRAINING)
            entry.falling_asleep = sleep
            entry.queue.close()

    def _dismiss_all(self, victims: Iterable[Victim]) -> list[ModelEntry]:
        """As a plan says, each in its way."""
        entries = []
        for victim in victims:
            entry = self.entries[victim.id]
            self._dismiss(entry, victim.action == "sleep")
            entries.append(entry)
        return entries

    async def _leave(self, entry: ModelEntry, reason: str) -> None:
        """From DRAINING to ASLEEP or ABSENT, from UNLOADING to ABSENT. Running requests finish, or the deadline ends
        them; then the engine sleeps or its process ends."""
        await self._drain(entry)
        if entry.state is S.DRAINING and entry.falling_asleep and await self._fall_asleep(entry, reason):
            return
        if entry.state is S.DRAINING:
            entry.falling_asleep = False
            entry.to(S.UNLOADING)
        elif entry.state is not S.UNLOADING or entry.link is None:  # it died meanwhile
            return
        link, entry.link = entry.link, None
        held = entry.bytes
        entry.queue.engine_gone()
        if link is not None:
            await link.end(grace=0.0)
            await self._memory_back(held)
        entry.loaded, entry.bytes, entry.host_bytes = None, 0, 0
        entry.to(S.ABSENT)
        self._observer.evicted(entry, reason)
        self._asked_again(entry)

    async def _drain(self, entry: ModelEntry) -> None:
        deadline = entry.clock() + entry.recipe.residency.drain_deadline
        while entry.queue.running and entry.state is S.DRAINING:
            try:
                async with asyncio.timeout(max(0.0, deadline - entry.clock())):
                    await self.change()
            except TimeoutError:
                entry.queue.abort_running(
                    Unavailable(
                        "The model was unloaded before this answer was complete.", code="drained", retry_after=1
                    )
                )
                break

    def _asked_again(self, entry: ModelEntry) -> None:
        """It has left. Who asked for it meanwhile waits for its return."""
        self._note_change()
        if entry.queue.oldest is not None:
            entry.wanted_since = entry.queue.oldest
        self.decide()

    async def _fall_asleep(self, entry: ModelEntry, reason: str) -> bool:
        """From DRAINING to ASLEEP. False: it shall end instead, if it is DRAINING still."""
        link, expected = entry.link, entry.asleep
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                while entry.queue.running and entry.state is S.DRAINING:  # those whom the deadline has aborted
                    await self.change()
        except TimeoutError:
            return False
        await entry.queue.settled()
        if link is None or expected is None or not await self._host_has_room(entry, expected.host_bytes):
            return False
        if entry.state is not S.DRAINING or entry.link is not link:
            return False
        began, before = entry.clock(), entry.bytes
        entry.host_bytes = max(entry.host_bytes, expected.host_bytes)
        try:
            held = await link.command(frames.Sleep, SLEEP_SECONDS)
            if held is None:
                raise EngineFailed("The slot ended a sleep without saying what it holds.")
            on_device = held.device_bytes
            if self.counts_processes:
                on_device = await asyncio.to_thread(group_bytes, link.group, False) or on_device
            await self._memory_back(before - on_device)
        except Exception as error:  # whatever it is, the entry must not stay DRAINING for ever
            if not isinstance(error, RoundhouseError):
                log.exception("unmapped error in a sleep")
                error = EngineFailed(f"The sleep failed inside the server: {type(error).__name__}.")
            if entry.state is S.DRAINING and entry.link is link:
                self._cannot_sleep(entry, "sleep", error)
            return False
        if entry.state is not S.DRAINING or entry.link is not link:  # it died meanwhile
            return False
        entry.bytes, entry.host_bytes, entry.falling_asleep = on_device, held.host_bytes, False
        entry.slept = type(held)(device_bytes=on_device, host_bytes=held.host_bytes)
        entry.asleep_since = entry.clock()
        entry.measured_sleep = entry.asleep_since - began
        entry.queue.engine_gone()
        entry.to(S.ASLEEP)
        self._observer.slept(entry, reason, entry.measured_sleep, before - on_device)
        self._asked_again(entry)
        return True

    async def _host_has_room(self, entry: ModelEntry, asleep: int) -> bool:
        """Whether its copy fits into host memory, once those that are leaving it have left."""
        while self.held_on_host(besides=entry) + asleep > self.host_budget:
            states = [(e.state, e.falling_asleep) for e in self.entries.values()]
            if not any(state is S.UNLOADING or (state is S.DRAINING and not sleep) for state, sleep in states):
                return False
            await self.change()
        return True

    def _cannot_sleep(self, entry: ModelEntry, step: Step, error: RoundhouseError) -> None:
        entry.insomnia = True
        log.error(f"{step} failed", extra={"model": entry.id, "cause": error.message, "code": error.code})
        self._observer.sleep_failed(entry, step, error)

    async def _make_room(self, entry: ModelEntry, link: SlotLink, reason: Cause) -> bool:
        """A load ran out of memory, by its own word or killed by the kernel: let all idle models leave, once.

        True when any left, so that a second try makes sense.
        """
        await link.end()
        idle = [
            e for e in self.entries.values() if e.state in (S.READY, S.ASLEEP) and not e.pinned and not e.queue.running
        ]
        for other in idle:
            self._dismiss(other)
        about = {"model": entry.id, "reason": reason.code, "cause": reason.text, "evicting": [e.id for e in idle]}
        log.warning("a load ran out of memory", extra=about)
        if idle:
            self._observer.retried(entry, reason.code)
        await asyncio.gather(*(self._leave(other, f"memory for {entry.id}") for other in idle))
        return bool(idle)
