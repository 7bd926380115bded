"""Bring a model to READY: make room, then load or wake it."""

import asyncio
from collections.abc import Callable
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
"""Most seconds of one wake."""


class Loader:
    """
    | step          | from                   | to      | holds                   | if it fails                         |
    |---------------|------------------------|---------|-------------------------|-------------------------------------|
    | start         | ABSENT, FAILED, ASLEEP | LOADING |                         |                                     |
    | make room     | LOADING                | LOADING | a load what it needs;   | asleep, it dies: left to the        |
    |               |                        |         | a wake what it held     | watcher. Another has grown into the |
    |               |                        |         | asleep, and a claim     | room: ABSENT or ASLEEP, in line     |
    | load          | LOADING                | READY   | as estimated, then as   | FAILED; out of memory: once more    |
    |               |                        |         | measured                | when all idle models have left      |
    | wake          | LOADING                | READY   | the same                | its process ends, ABSENT; requests  |
    |               |                        |         |                         | waits is served after a load        |

    Args:
        decide: called when a model has come, or did not.
    """

    def __init__(self, table: Table, drainer: Drainer, decide: Callable[[], None]) -> None:
        self._table, self._drainer, self._decide = table, drainer, decide

    def start(self, entry: ModelEntry, plan: Plan) -> None:
        """Carry out a plan: victims are dismissed at once, the rest runs in a task."""
        log.info("plan", extra={"model": entry.id, "plan": _short(plan)})
        entry.room_at = entry.clock() + plan.expected_seconds - entry.return_seconds
        entry.to(S.LOADING)
        entry.progress = Progress(phase="queued", fraction=0.0)
        wakes = plan.verdict == "wake"
        if wakes:
            entry.claim = entry.needed
        else:
            entry.devices, entry.bytes, entry.host_bytes = plan.devices, entry.needed, entry.host_needed
            self._table.claims.add(entry.id)
        victims = self._drainer.dismiss_all(plan.victims)
        come = self._wake(entry, victims) if wakes else self._load(entry, plan, victims)
        self._table.spawn(come, f"load-{entry.id}")

    # --- room -----------------------------------------------------------------------------------------------------
    async def _make_room(self, entry: ModelEntry, victims: list[ModelEntry]) -> bool:
        """Wait until its bytes are free: victims and other models leave.

        Returns early if it dies asleep.

        False: there will be no room, since others have grown meanwhile and none is leaving.
        """
        link, reason = entry.link, f"for {entry.id}"
        if victims:
            entry.progress = Progress(phase="evicting", fraction=0.0, detail=", ".join(v.id for v in victims))
            await asyncio.gather(*(self._drainer.leave(v, reason) for v in victims))
        while entry.link is link and not self._has_room(entry):
            if any(e.state in (S.DRAINING, S.UNLOADING) for e in self._table.entries.values()):
                await self._table.change()
            elif (sleeper := self._sleeper_to_end(entry)) is not None:  # a victim holds more asleep than was planned
                await self._drainer.evict(sleeper, reason)
            else:
                return False
        return True

    def _requeue(self, entry: ModelEntry) -> None:
        """Give the claim up but keep its age."""
        log.warning("others have grown into the room of a model", extra={"model": entry.id})
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
        """Whether it fits on its devices, whatever host memory has."""
        part, group = entry.on_each(entry.needed), self._table.group_of(entry)
        return all(self._table.used_bytes(besides=entry, device=b.device) + part <= b.bytes for b in group)

    def _sleeper_to_end(self, entry: ModelEntry) -> ModelEntry | None:
        """Return the sleeping model used longest ago.

        Where its devices lack bytes, one on any of them.
        """
        asleep = [e for e in self._table.entries.values() if e.state is S.ASLEEP and not e.pinned and e is not entry]
        if not self._fits(entry):
            asleep = [e for e in asleep if set(e.devices) & set(entry.devices)]
        return min(asleep, key=lambda e: e.last_used, default=None)

    async def _evict_idle(self, entry: ModelEntry, reason: Cause) -> bool:
        """Evict idle models after a load ran out of memory; true if any left."""
        idle = [
            e for e in self._table.entries.values() if e.state in (S.READY, S.ASLEEP) and not e.pinned and not e.leases
        ]
        for other in idle:
            self._drainer.dismiss(other)
        about = {"model": entry.id, "reason": reason.code, "cause": reason.text, "evicting": [e.id for e in idle]}
        log.warning("a load ran out of memory", extra=about)
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
        except Exception as error:  # whatever it is, the entry must not stay LOADING for ever
            self._table.claims.discard(entry.id)
            self._load_failed(entry, map_error(error, "load"))
            return
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
        """Load into an empty slot.

        Tries a second one if memory runs out in the first and others can make room.
        """
        entry.progress = Progress(phase="starting", fraction=0.02)
        table, engine = self._table, entry.recipe.engine.name
        await table.pool.cool(self._room_for_warm_slots(entry), keep=engine)
        try:
            return await self._try(entry, engine)
        except RoundhouseError as error:
            cause = UNKNOWN if entry.link is None else entry.link.cause
            died = error.code == "engine_died" and cause.may_be_memory
            if error.code != "out_of_memory" and not died:
                raise
            if not await self._evict_idle(entry, Cause.of(error) if cause is UNKNOWN else cause):
                raise
            entry.link = None  # its slot comes back, and may be another's before this one has the next
        return await self._try(entry, engine)

    async def _try(self, entry: ModelEntry, engine: str) -> tuple[SlotLink, LoadResult]:
        """Load into one slot.

        If the load fails the slot ends, and its memory is seen to be back.
        """
        memory = self._table.memory_of(entry)
        link = entry.link = await self._table.pool.take(engine)
        self._table.claims.discard(entry.id)
        empty = None
        try:
            empty = await memory.used()
            loaded = await self._send_load(entry, link)
            if self._table.counts_processes:  # the most that the load itself took counts, too
                used_bytes = await link.peak_bytes()
                loaded = msgspec.structs.replace(loaded, resident_bytes=max(used_bytes, loaded.resident_bytes))
            _check_alive(link)
            return link, loaded
        except Exception:
            try:
                before = await memory.used()
            finally:  # whatever the memory says: else its slot is never another's
                await link.end()
            if empty is not None and before is not None:  # others load meanwhile, too
                await memory.back(min(entry.bytes, max(0, before - empty)), before)
            raise

    def _room_for_warm_slots(self, entry: ModelEntry) -> int:
        """Bytes for warm slots, in host memory: they hold nothing on a GPU."""
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
            raise EngineFailed("The slot ended a load without saying what it holds.")
        return loaded

    def _load_failed(self, entry: ModelEntry, error: RoundhouseError) -> None:
        link = entry.link
        if link is not None and link.cause is not UNKNOWN:
            error = EngineFailed(f"The engine died while it loaded: {link.cause.text}.", code=link.cause.code)
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

    # --- wake -----------------------------------------------------------------------------------------------------
    async def _wake(self, entry: ModelEntry, victims: list[ModelEntry]) -> None:
        """Wake a model in the slot in which it slept."""
        started, link = entry.clock(), entry.link
        if link is None:  # it died before this began: the watcher sees to the rest
            return
        try:
            if not await self._make_room(entry, victims):
                self._requeue(entry)
                return
            if entry.link is not link:  # it died asleep, and its slot has another process: the watcher sees to the rest
                return
            began = entry.clock()
            memory = await self._send_wake(entry, link)
            _check_alive(link)
        except Exception as error:  # whatever it is, the entry must not stay LOADING for ever
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
            raise EngineFailed("The slot ended a wake without saying what it holds.")
        return memory

    async def _wake_failed(self, entry: ModelEntry, link: SlotLink | None, error: RoundhouseError) -> None:
        self._drainer.sleep_failed(entry, "wake", error)
        entry.link = None  # from here on its end is ours: the watcher looks for the entry of a link that died
        if link is not None:
            before = await self._table.memory_of(entry).used()
            await link.end()
            await self._table.memory_of(entry).back(entry.seen, before)
        entry.link, entry.loaded, entry.progress = None, None, None
        entry.bytes, entry.claim, entry.host_bytes = 0, 0, 0
        entry.to(S.ABSENT)
        self._table.note_change()
        self._decide()

    def _open(self, entry: ModelEntry, link: SlotLink) -> None:
        entry.loaded_at = entry.last_used = entry.clock()
        entry.requested_since, entry.progress = None, None
        entry.to(S.READY)
        entry.queue.open(link)
        self._table.note_change()
        self._decide()


def _check_alive(link: SlotLink) -> None:
    """Raises Unavailable for a process that ended just after it was ready.

    While a model loads or wakes, the watcher ignores its death. From here to READY nothing is awaited."""
    if not link.connected:
        raise Unavailable(f"The engine died as soon as it was ready: {link.cause.text}.", code="engine_died")


def _short(plan: Plan) -> dict[str, object]:
    return {
        "verdict": plan.verdict,
        "needed": plan.needed,
        "free": plan.free,
        "victims": [f"{v.action} {v.id}" for v in plan.victims],
        "expected_s": round(plan.expected_seconds, 2),
    }
