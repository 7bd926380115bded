"""Watch models for death, hangs, growth and idle time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

from models.engines import prewarmed_bytes
from registry import learning
from registry.base.wording import size_words
from registry.errors import EngineFailed, RoundhouseError
from registry.recipes.definition import Recipe
from runtime.config.device import Device
from runtime.config.settings import Settings
from runtime.residency import policy
from runtime.residency.drainer import Drainer
from runtime.residency.entry import CRASH_LOOP, ModelEntry
from runtime.residency.states import HOLDS_MEMORY, ModelState
from runtime.residency.table import S, Table, log
from runtime.slots import frames
from runtime.slots.link import Cause, SlotLink
from runtime.slots.pool import SlotPool

STATES_WITH_HEARTBEAT = frozenset({S.READY, S.LOADING, S.DRAINING, S.ASLEEP})
OVERDRAWN = "memory_overdrawn"


class Watcher:
    """Reacts to what happens to models by itself.

    | event                  | from                      | to        | then                                         |
    |------------------------|---------------------------|-----------|----------------------------------------------|
    | its process ended      | READY, DRAINING, ASLEEP,  | UNLOADING | wait until its memory is free                |
    |                        | LOADING while it has yet  |           |                                              |
    |                        | to be woken               |           |                                              |
    | the same               | LOADING                   | LOADING   | the loader's call fails                      |
    | its memory is free     | UNLOADING, had served     | FAILED    | reload it, at once or after a pause; if it   |
    |                        |                           |           | was leaving, only if requested since         |
    | the same               | UNLOADING, had slept      | ABSENT    | waiting requests are served after a load     |
    | no answer to heartbeat | LOADING, READY, DRAINING, | unchanged | end its process, then as above               |
    |                        | ASLEEP                    |           |                                              |
    | idle time-out          | READY                     |           | the drainer puts it to sleep or ends it      |
    | sleep time-out         | ASLEEP                    |           | the drainer ends it                          |
    | holds more than before | READY                     | READY     | count that from now on                       |
    | holds more than its    | READY                     | DRAINING  | unload and reload it                         |
    | allowance              |                           |           |                                              |
    | holds twice that       | READY, DRAINING           | unchanged | end its process, then as above               |

    Args:
        decide: called when a model may return or another one has to leave.
        working_margin: see `registry.learning.most`.
        look_at_replicas: called with each heartbeat.
    """

    def __init__(
        self,
        table: Table,
        drainer: Drainer,
        decide: Callable[[], None],
        working_margin: int,
        look_at_replicas: Callable[[], None],
    ) -> None:
        self._look_at_replicas = look_at_replicas
        self._table, self._drainer, self._decide, self._working_margin = table, drainer, decide, working_margin

    async def watch(self, heartbeat: float, hung_after: float) -> NoReturn:
        """Run idle time-outs and heartbeats forever."""
        while True:
            await asyncio.sleep(heartbeat)
            try:
                await self._look(hung_after)
            except Exception:  # an error must not end the loop, which notices hanging engines
                log.exception("the models could not be watched")

    async def _look(self, hung_after: float) -> None:
        await self.look_at_devices()
        self._look_at_replicas()
        for entry in self._table.entries.values():
            if self._is_idle(entry):
                self._retire(entry)
            elif entry.state in STATES_WITH_HEARTBEAT and entry.link is not None:
                self._table.spawn(self._ping(entry, entry.link, hung_after), f"ping-{entry.id}")

    # --- devices --------------------------------------------------------------------------------------------------
    async def look_at_devices(self) -> None:
        """End the engines on a lost device. Their models are reloaded on another device with room."""
        lost = self._table.lost
        for device, memory in self._table.memories.items():
            await memory.used()
            if not memory.lost:
                if lost.pop(device, ""):
                    log.warning("a lost device is available again", extra={"device": device})
                    self._decide()
            elif device not in lost:
                lost[device] = memory.lost
                log.error("a device is lost", extra={"device": device, "cause": memory.lost})
                cause = Cause("device_lost", f"its device {device} is lost: {memory.lost}")
                for entry in self._table.entries.values():
                    if device in entry.devices and entry.link is not None:  # in tasks, since an end may take forever
                        self._table.spawn(entry.link.end(cause=cause), f"lost-{entry.id}")

    # --- death ----------------------------------------------------------------------------------------------------
    def died(self, link: SlotLink) -> None:
        """Handle the end of a slot's process, which ended by itself or was killed (see `link.cause`)."""
        entry = next((e for e in self._table.entries.values() if e.link is link), None)
        if entry is None:
            return
        waits = entry.state is S.LOADING and entry.claim > 0  # still asleep until there is room for its wake
        if entry.state not in (S.READY, S.ASLEEP, S.DRAINING) and not waits:
            return
        reason = link.cause
        unused = entry.state is S.ASLEEP or waits or (entry.falling_asleep and not entry.queue.running)
        entry.deaths += 1
        occupied, was_leaving = entry.seen, entry.state is S.DRAINING
        entry.link, entry.loaded, entry.progress = None, None, None
        entry.falling_asleep, entry.claim = False, 0
        entry.to(S.UNLOADING)
        entry.queue.engine_gone()
        self._table.observer.died(entry, reason.code)
        log.error(
            "engine died",
            extra={"model": entry.id, "deaths": entry.deaths, "reason": reason.code, "cause": reason.text},
        )
        self._table.note_change()
        clean_up = self._clean_up(entry, occupied, link.gone(), None if unused else reason, was_leaving)
        self._table.spawn(clean_up, f"clean-up-{entry.id}")
        if len(entry.replicas) > 1:  # its requests may need another replica
            self._decide()

    async def _clean_up(
        self, entry: ModelEntry, occupied: int, gone: Awaitable[None], reason: Cause | None, was_leaving: bool
    ) -> None:
        """Count its memory as free once its last process is gone, then reload it.

        `reason` is None if it slept and served no request; then it becomes ABSENT without a back-off.
        """
        await gone
        await self._table.memory_of(entry).back(occupied, None)
        is_needed = not was_leaving or entry.requested_since is not None or entry.queue.waiting
        entry.bytes, entry.host_bytes, entry.requested_since = 0, 0, None  # waiting requests wait for the back-off, too
        if reason is None:
            entry.to(S.ABSENT)
            self._drainer.on_absent(entry)
            return
        entry.to(S.FAILED)
        failure = entry.fail(EngineFailed(f"The engine of '{entry.id}' died: {reason.text}.", code=reason.code))
        self._table.note_change()
        if is_needed and len(entry.failures) == 1:
            self._bring_back(entry)
        elif is_needed and (len(entry.failures) <= CRASH_LOOP or entry.queue.waiting):
            asyncio.get_running_loop().call_later(failure.until - failure.at, self._bring_back, entry)
        self._decide()

    def _bring_back(self, entry: ModelEntry) -> None:
        if entry.state is S.FAILED and entry.requested_since is None:
            oldest = entry.queue.oldest
            entry.requested_since = entry.clock() if oldest is None else oldest
            self._decide()

    # --- heartbeat, growth ----------------------------------------------------------------------------------------
    async def _ping(self, entry: ModelEntry, link: SlotLink, hung_after: float) -> None:
        if self._table.running(f"ping-{entry.id}") > 1:
            return  # the previous one has not been answered yet
        try:
            await link.command(frames.Ping, hung_after)
            if self._table.counts_processes:
                await self.holds(entry, link, await link.peak_bytes())
        except RoundhouseError as error:
            if entry.link is link and link.connected and entry.state in STATES_WITH_HEARTBEAT:
                log.error("heartbeat failed", extra={"model": entry.id, "cause": error.message})
                await link.end(cause=Cause.of(error))

    async def holds(self, entry: ModelEntry, link: SlotLink, used: int) -> None:
        """Count the memory of a full engine step beyond the load, now and for the next load.

        Use beyond the allowance does not come from a full step. Then nothing is learnt, and no other model is evicted.
        """
        if entry.link is not link or entry.state not in (S.READY, S.DRAINING):
            return
        # while it drains for a new recipe, `after_load` is that recipe's
        after_load = max(entry.after_load, 0 if entry.loaded is None else entry.loaded.resident_bytes)
        allowed = after_load + learning.most(after_load, self._working_margin)
        if used > allowed:
            about = f"It used {size_words(used)} of memory, but is allowed only {size_words(allowed)}"
            if used > 2 * allowed:
                await link.end(cause=Cause(OVERDRAWN, about))
            elif entry.state is S.READY:
                log.error("a model exceeds its memory allowance", extra={"model": entry.id, "cause": about})
                entry.fail(EngineFailed(f"{about}, so it was restarted.", code=OVERDRAWN))
                self._drainer.dismiss(entry)
                if len(entry.failures) <= CRASH_LOOP and entry.requested_since is None:
                    entry.requested_since = entry.clock()
                self._table.spawn(self._drainer.leave(entry, OVERDRAWN), f"restart-{entry.id}")
        elif used > entry.bytes and entry.state is S.READY:
            entry.margin = learning.learn_margin(entry.margin, entry.after_load, used, self._working_margin)
            entry.bytes = entry.needed = used
            entry.needed_detail = "as measured while it served"
            self._table.observer.grew(entry)
            self._decide()

    # --- idleness -------------------------------------------------------------------------------------------------
    def _is_idle(self, entry: ModelEntry) -> bool:
        """Whether it has been unused for its idle time-out or, if asleep, for its sleep time-out."""
        residency, asleep = entry.recipe.residency, entry.state is S.ASLEEP
        timeout = residency.sleep_timeout if asleep else residency.idle_timeout
        busy = entry.pinned or entry.leases or entry.requested_since is not None
        used = (replica.last_used for replica in entry.replicas if not replica.is_extra)  # they leave together
        since = entry.asleep_since if asleep else entry.last_used if entry.is_extra else max(used)
        return bool(timeout) and entry.state in (S.READY, S.ASLEEP) and not busy and entry.clock() - since > timeout

    def _retire(self, entry: ModelEntry) -> None:
        """Put it to sleep if it can and host memory has room, otherwise end it."""
        older = policy.to_sleep(self._table.snapshot(), entry.id)
        for other in self._drainer.dismiss_all(older or ()):
            self._table.spawn(self._drainer.leave(other, f"host memory for {entry.id}"), f"room-{other.id}")
        self._drainer.dismiss(entry, sleep=older is not None)
        self._table.spawn(self._drainer.leave(entry, "idle"), f"idle-{entry.id}")


EVERY_SECONDS = 0.5


async def keep_warm(pool: SlotPool, table: Table, device: Device) -> NoReturn:
    """Keep one empty slot with imported libraries for each engine that has a model, forever.

    Engines of models that are away come first. For the others the slot speeds up the restart of a model that dies.
    Pauses while a model loads, which needs the cores, and uses only memory that no model holds (with a GPU, host
    memory). A load that needs that memory ends the warm slots that it does not use (`SlotPool.cool`).
    """
    while True:
        for engine in engines_to_prewarm(table):
            if any(entry.state is ModelState.LOADING for entry in table.entries.values()):
                break
            on_cpu = device.kind == "cpu"
            free = device.budget - table.used_bytes() if on_cpu else device.host_budget - table.used_host_bytes()
            room = free - sum(link.prewarmed_bytes for link in pool.prewarmed())
            begun = any(link.prewarmed == engine for link in pool.prewarmed())
            if begun or prewarmed_bytes(engine) <= room:
                await pool.prewarm(engine)
        await asyncio.sleep(EVERY_SECONDS)


def engines_to_prewarm(table: Table) -> list[str]:
    """Return the engines of the usable models, those of models not in memory first."""
    able = [entry for entry in table.entries.values() if entry.broken is None]
    away_first = sorted(able, key=lambda entry: entry.state in HOLDS_MEMORY)
    return list(dict.fromkeys(entry.recipe.engine.name for entry in away_first))


def engines_at_start(settings: Settings, recipes: Sequence[Recipe]) -> tuple[str, ...]:
    """Return the engines that the first slots import while the gateway starts."""
    if not settings.prewarm:
        return ()
    at_once = (r.engine.name for r in recipes if r.residency.preload or r.residency.pin)
    return tuple(dict.fromkeys(at_once))[: settings.slots]
