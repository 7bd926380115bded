"""How models leave: they drain, their process ends, their memory is seen to be back."""

import asyncio

from registry.errors import Conflict, Unavailable
from runtime.link import SlotLink
from runtime.residency.entry import ModelEntry
from runtime.residency.table import S, Table, log


class Leaving(Table):
    """
    | method    | READY                        | LOADING, DRAINING, UNLOADING | ABSENT, FAILED  |
    |-----------|------------------------------|------------------------------|-----------------|
    | unload    | drains, then ends the slot   | waits for it, then as it is  | nothing to do   |
    """

    async def unload(self, entry: ModelEntry, force: bool = False) -> None:
        """Unload by hand: running requests finish first. Raises Conflict when it is pinned and not forced."""
        if entry.pinned and not force:
            raise Conflict(f"Model '{entry.id}' is pinned. Unpin it first, or send force=true.", code="model_pinned")
        while entry.state in (S.LOADING, S.UNLOADING, S.DRAINING):
            await self.change()
        if entry.state is S.READY:
            await self._evict(entry, "by hand")

    async def _evict(self, entry: ModelEntry, reason: str) -> None:
        entry.to(S.DRAINING)
        entry.queue.close()
        await self._leave(entry, reason)

    async def _leave(self, entry: ModelEntry, reason: str) -> None:
        """From DRAINING to ABSENT: running requests finish (or the deadline ends them), then the process ends."""
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
        if entry.state is not S.DRAINING:  # it died meanwhile
            return
        entry.to(S.UNLOADING)
        link, entry.link = entry.link, None
        held = entry.bytes
        entry.queue.engine_gone()
        if link is not None:
            await link.end(grace=0.0)
            await self._memory_back(held)
        entry.loaded, entry.bytes = None, 0
        entry.to(S.ABSENT)
        self._observer.evicted(entry, reason)
        self._note_change()
        if entry.queue.oldest is not None:
            entry.wanted_since = entry.queue.oldest
        self.decide()

    async def _make_room(self, entry: ModelEntry, link: SlotLink) -> bool:
        """A load ran out of memory, by its own word or killed by the kernel: let all idle models leave, once.

        True when any left, so that a second try makes sense.
        """
        await link.end()
        idle = [e for e in self.entries.values() if e.state is S.READY and not e.pinned and not e.queue.running]
        for other in idle:
            other.to(S.DRAINING)
            other.queue.close()
        log.warning("a load ran out of memory", extra={"model": entry.id, "evicting": [e.id for e in idle]})
        await asyncio.gather(*(self._leave(other, f"memory for {entry.id}") for other in idle))
        return bool(idle)
