"""How a model comes to READY in the engine of another one, which differs from it in nothing but its weights.

| step                      | the model that leaves | the model that comes          | if it fails                     |
|---------------------------|-----------------------|-------------------------------|---------------------------------|
| the plan                  | DRAINING, none starts | LOADING                       |                                 |
| others make room,         | DRAINING              | LOADING                       | it ends as any victim, a load   |
| adapters settle           |                       |                               | follows                         |
| the engine changes hands  | UNLOADING, ABSENT     | LOADING, holds slot and bytes | its process ends, a load follows|
| it has proved its weights | ABSENT                | READY                         |                                 |

From the change of hands on the engine answers nobody before it has taken the new weights. If it dies or says anything
but that, its process ends; neither model is served from it. A model whose swap failed is loaded from then on, until the
server starts anew.
"""

import asyncio

from models.messages import Loaded, Progress
from registry.errors import EngineFailed, RoundhouseError
from runtime.residency.entry import ModelEntry
from runtime.residency.policy import Plan
from runtime.residency.table import S, log
from runtime.residency.waking import Waking
from runtime.slots import frames
from runtime.slots.link import SlotLink

SWAP_WITHIN = 300.0
"""Most seconds of one swap."""


class Swapping(Waking):
    async def _swap(self, entry: ModelEntry, plan: Plan, victims: list[ModelEntry]) -> Loaded | None:
        """As the plan says. None: a load must follow; those who were to leave have left."""
        named = [victim.id for victim in plan.victims if victim.action == "swap"]
        giver = next((victim for victim in victims if victim.id in named), None)
        if giver is None:
            await self._wait_for_room(entry, victims)
            return None
        link = await self._take_over(entry, giver, [victim for victim in victims if victim is not giver])
        if link is None:
            await self._wait_for_room(entry, [giver] if giver.state is S.DRAINING else [])
            return None
        self._claims.discard(entry.id)
        self._asked_again(giver)
        loaded = await self._swap_into(entry, link)
        if loaded is None:
            self._claims.add(entry.id)
            await self._wait_for_room(entry, [])
        return loaded

    async def _take_over(self, entry: ModelEntry, giver: ModelEntry, others: list[ModelEntry]) -> SlotLink | None:
        """The giver's slot with its engine, from now on this model's. None: the giver stays DRAINING, or has died."""
        link = giver.link
        if others:
            entry.progress = Progress(phase="evicting", fraction=0.0, detail=", ".join(v.id for v in others))
            await asyncio.gather(*(self._leave(other, f"for {entry.id}") for other in others))
        await giver.queue.settled()
        while giver.link is link and self._held_in_place(entry, giver) > self.budget:
            if not any(e.state in (S.DRAINING, S.UNLOADING) for e in self.entries.values() if e is not giver):
                return None
            await self.change()
        await self.pool.cool(self.budget - self._held_in_place(entry, giver))
        if link is None or giver.link is not link or giver.state is not S.DRAINING or giver.queue.running:
            return None
        held = giver.bytes
        giver.link, giver.loaded, giver.bytes, giver.host_bytes = None, None, 0, 0
        giver.to(S.UNLOADING)
        giver.queue.engine_gone()
        giver.to(S.ABSENT)
        entry.link, entry.bytes = link, max(entry.needed, held)
        self._observer.evicted(giver, f"swapped for {entry.id}")
        return link

    def _held_in_place(self, entry: ModelEntry, giver: ModelEntry) -> int:
        """Bytes of all models while the engine changes: the new weights come when the old ones have gone."""
        return self.held(besides=entry) - giver.bytes + max(entry.needed, giver.bytes)

    async def _swap_into(self, entry: ModelEntry, link: SlotLink) -> Loaded | None:
        """None: that engine is gone, and a load must follow."""
        group, recipe = link.group, entry.recipe.model_dump_json().encode()

        def report(progress: Progress) -> None:
            entry.progress = progress
            self._note_change()

        try:
            async with link.call(lambda uid: frames.Swap(uid, recipe, str(entry.path))) as call:
                loaded = await asyncio.wait_for(call.done(report), SWAP_WITHIN)
            if loaded is None:
                raise EngineFailed("The slot ended a swap without saying what it holds.")
            return loaded
        except Exception as error:  # whatever it is, that engine must answer nobody
            if not isinstance(error, RoundhouseError):
                log.error("unmapped error in a swap", exc_info=not isinstance(error, TimeoutError))
                error = EngineFailed(f"The swap failed inside the server: {type(error).__name__}.")
            log.error("swap failed", extra={"model": entry.id, "cause": error.message, "code": error.code})
            entry.twin = None
            self._observer.swap_failed(entry, error)
            if link.group == group:  # else it died, and its slot has another process already
                await link.end()
            await self._memory_back(entry.bytes)
            entry.link, entry.bytes = None, entry.needed
            return None
