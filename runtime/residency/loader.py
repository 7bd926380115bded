"""Bring a model to READY: make room, then load or wake it."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from functools import partial

import msgspec

from models.messages import LoadResult, MemoryFootprint, Progress
from registry import learning
from registry.errors import EngineFailed, RoundhouseError, Unavailable
from runtime.residency.drainer import Drainer
from runtime.residency.entry import ModelEntry
from runtime.residency.policy import Plan
from runtime.residency.table import S, Table, log, map_error
from runtime.slots import frames
from runtime.slots.link import UNKNOWN, Cause, SlotLink

WAKE_SECONDS = 120.0
"""Timeout of a wake."""
STOPPED = "The model was unloaded while it loaded."
CHANGED = "its files changed while it loaded. Send the request again once they are complete."


class Loader:
    """Carries out loads and wakes.

    | step          | from                   | to      | memory counted          | on failure                          |
    |---------------|------------------------|---------|-------------------------|-------------------------------------|
    | start         | ABSENT, FAILED, ASLEEP | LOADING |                         |                                     |
    | make room     | LOADING                | LOADING | load: what it needs;    | dies asleep: left to the watcher;   |
    |               |                        |         | wake: what it holds     | others grew into the room: back to  |
    |               |                        |         | asleep, plus a claim    | ABSENT or ASLEEP and into the line  |
    | load          | LOADING                | READY   | the estimate, then the  | FAILED; if out of memory, retried   |
    |               |                        |         | measurement             | once after evicting all idle models |
    | stop          | LOADING, not a wake    | ABSENT  | until its engine is     | -                                   |
    |               |                        |         | gone                    |                                     |
    | wake          | LOADING                | READY   | the same                | process ended, ABSENT; waiting      |
    |               |                        |         |                         | requests are served after a load    |

    Args:
        decide: called after each success or failure.
        revise: reads a model's revision again, because its files may have changed since they were read. Returns a value
            that differs after any change, even one that was undone.
    """

    def __init__(
        self,
        table: Table,
        drainer: Drainer,
        decide: Callable[[], None],
        revise: Callable[[ModelEntry], Awaitable[Hashable]],
    ) -> None:
        self._table, self._drainer, self._decide, self._revise = table, drainer, decide, revise
        self._stopped: set[str] = set()

    def start(self, entry: ModelEntry, plan: Plan) -> None:
        """Carry out a plan: dismiss the victims at once, do the rest in a task."""
        log.info("plan", extra={"model": entry.id, "plan": _short(plan)})
        entry.room_at = entry.clock() + plan.expected_seconds - entry.return_seconds
        self._stopped.discard(entry.id)  # from an unload at the end of a download
        entry.to(S.LOADING)
        entry.progress = Progress(phase="queued", fraction=0.0)
        wakes = plan.verdict == "wake"
        if wakes:
            entry.claim = entry.needed
        else:
            entry.devices, entry.bytes, entry.host_bytes = plan.devices, entry.needed, entry.host_needed
            self._table.claims.add(entry.id)
        victims = self._drainer.dismiss_all(plan.victims)
        work = self._wake(entry, victims) if wakes else self._load(entry, plan, victims)
        self._table.spawn(work, f"load-{entry.id}")

    def stop(self, entry: ModelEntry) -> None:
        """Give up a load: end its engine, or let it take no slot. Does nothing to a wake or a download."""
        if entry.state is not S.LOADING or entry.loaded is not None or entry.path is None or entry.id in self._stopped:
            return
        log.info("a load is stopped", extra={"model": entry.id})
        self._stopped.add(entry.id)
        entry.requested_since = None
        if entry.link is not None:
            self._table.spawn(entry.link.end(), f"stop-{entry.id}")

    # --- room -----------------------------------------------------------------------------------------------------
    async def _make_room(self, entry: ModelEntry, victims: list[ModelEntry]) -> bool:
        """Wait until victims and other models have left and its bytes are free.

        Returns early if it dies asleep. Returns False if there will be no room, because others have grown in the
        meantime and none is leaving.
        """
        link, reason = entry.link, f"for {entry.id}"
        if victims:
            entry.progress = Progress(phase="evicting", fraction=0.0, detail=", ".join(v.id for v in victims))
            await asyncio.gather(*(self._drainer.leave(v, reason) for v in victims))
        while entry.link is link and not self._has_room(entry):
            if any(e.state in (S.DRAINING, S.UNLOADING) for e in self._table.entries.values()):
                await self._table.change()
            elif (sleeper := self._sleeper_to_end(entry)) is not None:  # a victim holds more asleep than planned
                await self._drainer.evict(sleeper, reason)
            else:
                return False
        return True

    def _requeue(self, entry: ModelEntry) -> None:
        """Give up the claimed memory but keep its place in the line."""
        log.warning("other models have grown into the room planned for a model", extra={"model": entry.id})
        self._table.claims.discard(entry.id)
        entry.progress = None
        if entry.claim:
            entry.claim = 0
            entry.to(S.ASLEEP)
        else:
            entry.bytes = entry.host_bytes = 0
            entry.to(S.ABSENT)
        self._table.note_change()
        self._decide()

    def _has_room(self, entry: ModelEntry) -> bool:
        table = self._table
        on_host = table.used_host_bytes(besides=entry) + entry.host_claim
        return self._fits(entry) and on_host <= table.host_budget

    def _fits(self, entry: ModelEntry) -> bool:
        """Whether it fits on its devices, regardless of host memory."""
        part, group = entry.on_each(entry.needed), self._table.group_of(entry)
        return all(self._table.used_bytes(besides=entry, device=b.device) + part <= b.bytes for b in group)

    def _sleeper_to_end(self, entry: ModelEntry) -> ModelEntry | None:
        """Return the least recently used sleeping model; if device bytes are missing, one on the entry's devices."""
        asleep = [e for e in self._table.entries.values() if e.state is S.ASLEEP and not e.pinned and e is not entry]
        if not self._fits(entry):
            asleep = [e for e in asleep if set(e.devices) & set(entry.devices)]
        return min(asleep, key=lambda e: e.last_used, default=None)

    async def _evict_idle(self, entry: ModelEntry, reason: Cause) -> bool:
        """Evict idle models after a load may have run out of memory; return whether there were any."""
        idle = [
            e for e in self._table.entries.values() if e.state in (S.READY, S.ASLEEP) and not e.pinned and not e.leases
        ]
        for other in idle:
            self._drainer.dismiss(other)
        about = {"model": entry.id, "reason": reason.code, "cause": reason.text, "evicting": [e.id for e in idle]}
        sure = reason.code == "out_of_memory"  # else anybody may have killed it
        log.warning("a load ran out of memory" if sure else "a load may have run out of memory", extra=about)
        if idle:
            self._table.observer.retried(entry, reason.code)
        await asyncio.gather(*(self._drainer.leave(other, f"memory for {entry.id}") for other in idle))
        return bool(idle)

    # --- load -----------------------------------------------------------------------------------------------------
    async def _load(self, entry: ModelEntry, plan: Plan, victims: list[ModelEntry]) -> None:
        started = entry.clock()
        try:
            if not await self._make_room(entry, victims):
                self._requeue(entry)
                return
            link, loaded = await self._load_into_slot(entry)
        except Exception as error:  # whatever it is, the entry must not stay LOADING forever
            self._table.claims.discard(entry.id)
            if entry.id in self._stopped:
                self._load_stopped(entry)
            else:
                self._load_failed(entry, map_error(error, "load"))
            return
        finally:
            self._stopped.discard(entry.id)
        seconds = entry.clock() - started
        self._table.observer.loaded(entry, loaded, seconds, plan.expected_seconds, entry.needed)
        entry.load_seconds = sum(loaded.seconds.values()) or seconds
        entry.after_load = learning.after_load(entry.after_load, loaded.resident_bytes)
        entry.loaded, entry.bytes = loaded, entry.after_load + entry.margin
        entry.needed = entry.bytes
        entry.host_bytes = entry.host_needed = loaded.host_bytes + entry.host_adapters
        entry.needed_detail = "as measured at its last load"
        entry.loads, entry.naps = entry.loads + 1, 0
        self._open(entry, link)

    async def _load_into_slot(self, entry: ModelEntry) -> tuple[SlotLink, LoadResult]:
        """Load into an empty slot. Retries once in another if memory runs out and other models can make room."""
        entry.progress = Progress(phase="starting", fraction=0.02)
        table, engine = self._table, entry.recipe.engine.name
        await table.pool.cool(self._room_for_warm_slots(entry), keep=engine)
        stamp = await self._revise(entry)
        try:
            return await self._try(entry, engine, stamp)
        except RoundhouseError as error:
            cause = UNKNOWN if entry.link is None else entry.link.cause
            died = error.code == "engine_died" and cause.may_be_memory
            if entry.id in self._stopped or (error.code != "out_of_memory" and not died):
                raise
            if not await self._evict_idle(entry, Cause.of(error) if cause is UNKNOWN else cause):
                raise
            entry.link = None  # its slot returns to the pool and may go to another model before this one gets a new one
        return await self._try(entry, engine, stamp)

    async def _try(self, entry: ModelEntry, engine: str, stamp: Hashable) -> tuple[SlotLink, LoadResult]:
        """Load into one slot. If the load fails, end the slot and wait until its memory is free."""
        memory = self._table.memory_of(entry)
        if entry.id in self._stopped:
            raise Unavailable(STOPPED)
        link = entry.link = await self._table.pool.take(engine)
        self._table.claims.discard(entry.id)
        empty = None
        try:
            if entry.id in self._stopped:
                raise Unavailable(STOPPED)
            empty = await memory.used()
            loaded = await self._send_load(entry, link)
            if self._table.counts_processes:  # the peak during the load counts, too
                used_bytes = await link.peak_bytes()
                loaded = msgspec.structs.replace(loaded, resident_bytes=max(used_bytes, loaded.resident_bytes))
            if await self._revise(entry) != stamp:  # the engine may have read parts of both
                raise Unavailable(CHANGED)
            _check_alive(link)
            if entry.id in self._stopped:  # its engine is being ended
                raise Unavailable(STOPPED)
            return link, loaded
        except Exception:
            try:
                before = await memory.used()
            finally:  # even if reading the memory fails, or the slot would be lost
                await link.end()
            if empty is not None and before is not None:  # other models may be loading at the same time
                await memory.back(min(entry.bytes, max(0, before - empty)), before)
            raise

    def _room_for_warm_slots(self, entry: ModelEntry) -> int:
        """Return the bytes available to warm slots in host memory; they hold nothing on a GPU."""
        table = self._table
        if table.counts_processes:
            return table.budget - table.used_bytes(besides=entry) - entry.needed
        return table.host_budget - table.used_host_bytes(besides=entry) - entry.host_bytes

    async def _send_load(self, entry: ModelEntry, link: SlotLink) -> LoadResult:
        def report(progress: Progress) -> None:
            entry.progress = progress
            self._table.note_change()

        recipe = entry.recipe.model_dump_json().encode()
        group = self._table.group_of(entry)
        visible = ",".join(budget.uuid for budget in group if budget.uuid)
        cores = tuple(core for budget in group for core in budget.cores)
        device = group[0].engine_device
        frame = partial(frames.Load, recipe=recipe, path=str(entry.path), device=device, visible=visible, cores=cores)
        async with link.call(frame) as call:
            loaded = await call.done(report)
        if loaded is None:
            raise EngineFailed("The slot finished a load without reporting its memory.")
        return loaded

    def _load_failed(self, entry: ModelEntry, error: RoundhouseError) -> None:
        link = entry.link
        if link is not None and link.cause is not UNKNOWN:
            text = f"The engine died while it loaded: {link.cause.text}."
            error = Unavailable(text, code=link.cause.code, retry_after=1.0)
        log.error("load failed", extra={"model": entry.id, "cause": error.message, "code": error.code})
        entry.link, entry.progress, entry.requested_since = None, None, None
        entry.to(S.FAILED)
        failure = entry.fail(error)
        entry.bytes = entry.host_bytes = 0
        self._table.observer.load_failed(entry, error)
        entry.queue.refuse(
            Unavailable(
                f"Model '{entry.id}' could not be loaded: {error.message}",
                code=error.code,
                retry_after=failure.until - failure.at,
            )
        )
        self._table.note_change()
        self._decide()

    def _load_stopped(self, entry: ModelEntry) -> None:
        entry.link, entry.progress = None, None
        entry.bytes = entry.host_bytes = 0
        entry.to(S.ABSENT)
        self._drainer.on_absent(entry)

    # --- wake -----------------------------------------------------------------------------------------------------
    async def _wake(self, entry: ModelEntry, victims: list[ModelEntry]) -> None:
        """Wake a model in the slot where it sleeps."""
        started, link = entry.clock(), entry.link
        if link is None:  # it died before this started; the watcher does the rest
            return
        try:
            if not await self._make_room(entry, victims):
                self._requeue(entry)
                return
            if entry.link is not link:  # it died asleep, and its slot has another process; the watcher does the rest
                return
            began = entry.clock()
            memory = await self._send_wake(entry, link)
            _check_alive(link)
        except Exception as error:  # whatever it is, the entry must not stay LOADING forever
            if entry.link is not link:
                return
            await self._wake_failed(entry, link, map_error(error, "wake"))
            return
        entry.measured_wake = entry.clock() - began
        entry.bytes = max(entry.needed, memory.device_bytes)
        entry.host_bytes = memory.host_bytes + entry.host_adapters
        entry.wakes += 1
        self._table.observer.woke(entry, entry.clock() - started)
        self._open(entry, link)

    async def _send_wake(self, entry: ModelEntry, link: SlotLink) -> MemoryFootprint:
        entry.bytes, entry.host_bytes, entry.claim = entry.needed, entry.host_claim, 0
        entry.progress = Progress(phase="waking", fraction=0.1)
        self._table.note_change()
        memory = await link.command(frames.Wake, WAKE_SECONDS)
        if memory is None:
            raise EngineFailed("The slot woke up without reporting its memory.")
        return memory

    async def _wake_failed(self, entry: ModelEntry, link: SlotLink | None, error: RoundhouseError) -> None:
        self._drainer.sleep_failed(entry, "wake", error)
        entry.link = None  # we end it ourselves; without a link the watcher does not act on its death
        if link is not None:
            before = await self._table.memory_of(entry).used()
            await link.end()
            await self._table.memory_of(entry).back(entry.seen, before)
        entry.loaded, entry.progress = None, None
        entry.bytes, entry.claim, entry.host_bytes = 0, 0, 0
        entry.to(S.ABSENT)
        self._table.note_change()
        self._decide()

    def _open(self, entry: ModelEntry, link: SlotLink) -> None:
        entry.loaded_at = entry.last_used = entry.clock()
        entry.loaded_revision = entry.revision
        entry.requested_since, entry.progress = None, None
        entry.to(S.READY)
        entry.queue.open(link)
        self._table.note_change()
        self._decide()


def _check_alive(link: SlotLink) -> None:
    """Raise Unavailable if the process ended just after it became ready.

    While a model loads or wakes, the watcher ignores its death. Nothing is awaited between this check and READY.
    """
    if not link.connected:
        raise Unavailable(f"The engine died just after it became ready: {link.cause.text}.", code="engine_died")


def _short(plan: Plan) -> dict[str, object]:
    return {
        "verdict": plan.verdict,
        "needed": plan.needed,
        "free": plan.free,
        "victims": [f"{v.action} {v.id}" for v in plan.victims],
        "expected_s": round(plan.expected_seconds, 2),
    }
