"""The one writer of the model table: wishes in, plans by `policy.plan`, effects carried out here.

Everything runs on the gateway's event loop. A decision never awaits: it reads a snapshot, changes states, and starts
tasks that carry the change out; each task ends by asking for the next decision.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol

from models.messages import Loaded, Progress
from registry.errors import Conflict, DoesNotFit, EngineFailed, NotFound, RoundhouseError, Unavailable
from runtime import frames
from runtime.link import SlotLink
from runtime.pool import SlotPool
from runtime.residency import policy
from runtime.residency.entry import ModelEntry
from runtime.residency.states import HOLDS_MEMORY, ModelState

log = logging.getLogger("roundhouse.residency")
S = ModelState
MEMORY_FAULTS = frozenset({"out_of_memory", "engine_died"})
"""Codes of a failed load after which it is tried once more with the idle models gone."""
CRASH_LOOP = 3
"""Deaths in ten minutes after which a model is no longer brought back without a request for it."""


class Observer(Protocol):
    """Told of what happened; metrics and the measured-figures table listen. Must not block."""

    def loaded(self, entry: ModelEntry, loaded: Loaded, seconds: float, expected: float, needed: int) -> None: ...
    def load_failed(self, entry: ModelEntry, error: RoundhouseError) -> None: ...
    def evicted(self, entry: ModelEntry, reason: str) -> None: ...
    def died(self, entry: ModelEntry, reason: str) -> None: ...


class ResidencyManager:
    """Brings models in and out under a byte budget.

    Args:
        entries: the model table.
        pool: the slots.
        budget: bytes for all models together.
        device: what `Load` frames name.
        observer: hears what happened.
        memory_back: awaited after a slot ended: returns when its memory is seen to be back (GPU), at once on CPU.
        patience: seconds that a waiting model lets busy ones go on before the least recently used one must drain.
    """

    def __init__(
        self,
        entries: Iterable[ModelEntry],
        pool: SlotPool,
        budget: int,
        device: str,
        observer: Observer,
        memory_back: Callable[[int], Awaitable[None]],
        patience: float = 1.0,
    ) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self.pool, self.budget, self.device, self.patience = pool, budget, device, patience
        self._observer, self._memory_back = observer, memory_back
        self._tasks: set[asyncio.Task[None]] = set()
        self._claims = 0  # loads that have been decided but have not taken their slot yet
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self.draining = False

    # --- wishes ---------------------------------------------------------------------------------------------------
    def want(self, entry: ModelEntry) -> None:
        """A request waits for this model. Raises what makes waiting pointless."""
        if entry.broken is not None:
            raise entry.broken
        if entry.state is S.READY:
            return
        if entry.state is S.FAILED:
            failure = entry.failure
            if failure is not None and entry.clock() < failure.until:
                wait = failure.until - entry.clock()
                raise Unavailable(
                    f"Model '{entry.id}' failed: {failure.cause.message} The next try starts in {wait:.0f} s.",
                    code="model_failed",
                    retry_after=wait,
                )
        if entry.wanted_since is None:
            entry.wanted_since = entry.clock()
        self.decide()

    def plan(self, entry: ModelEntry) -> policy.Plan:
        """What a load of this model would do now. Changes nothing."""
        since = entry.clock() if entry.wanted_since is None else entry.wanted_since
        return policy.plan(self._snapshot(), self._need(entry, since))

    async def load(self, entry: ModelEntry) -> None:
        """Load by hand and wait for it. Raises the load's error."""
        if entry.state is S.FAILED:
            entry.failures.clear()
        self.want(entry)
        while entry.state is not S.READY:
            await self._change()
            if entry.state is S.FAILED and entry.failure is not None:
                raise entry.failure.cause
            if entry.wanted_since is None and entry.state is S.ABSENT:
                raise Conflict(f"Model '{entry.id}' was unloaded while it loaded.")

    async def unload(self, entry: ModelEntry, force: bool = False) -> None:
        """Unload by hand: running requests finish first. Raises Conflict when it is pinned and not forced."""
        if entry.pinned and not force:
            raise Conflict(f"Model '{entry.id}' is pinned. Unpin it first, or send force=true.", code="model_pinned")
        while entry.state in (S.LOADING, S.UNLOADING, S.DRAINING):
            await self._change()
        if entry.state is S.READY:
            await self._evict(entry, "by hand")

    def get(self, model: str) -> ModelEntry:
        entry = self.entries.get(model)
        if entry is None:
            raise NotFound(f"There is no model '{model}'. There are: {', '.join(sorted(self.entries))}.")
        return entry

    def released(self, entry: ModelEntry) -> None:
        """A request ended."""
        entry.last_used = entry.clock()
        self._note_change()
        self.decide()

    # --- decisions ------------------------------------------------------------------------------------------------
    def _snapshot(self) -> policy.Snapshot:
        residents = tuple(r for entry in self.entries.values() if (r := entry.resident()) is not None)
        now = next(iter(self.entries.values())).clock() if self.entries else 0.0
        return policy.Snapshot(self.budget, residents, self.pool.free - self._claims, now)

    def _need(self, entry: ModelEntry, since: float) -> policy.Need:
        return policy.Need(entry.id, entry.needed, entry.load_seconds, since, self.patience, detail=entry.needed_detail)

    def decide(self) -> None:
        """Serve the line of wanted models, oldest wish first; the head of the line is never overtaken."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.draining:
            return
        line = [e for e in self.entries.values() if e.wanted_since is not None and e.state in (S.ABSENT, S.FAILED)]
        for entry in sorted(line, key=lambda e: e.wanted_since or 0.0):
            assert entry.wanted_since is not None
            plan = policy.plan(self._snapshot(), self._need(entry, entry.wanted_since))
            if plan.verdict == "impossible":
                entry.wanted_since = None
                entry.queue.refuse(DoesNotFit(plan.why))
                if entry.state is S.ABSENT:
                    entry.to(S.LOADING)
                    entry.to(S.FAILED)
                entry.fail(DoesNotFit(plan.why))
                self._note_change()
                continue
            if plan.verdict == "wait":
                if plan.retry_at is not None:
                    delay = max(0.01, plan.retry_at - entry.clock())
                    self._timer = asyncio.get_running_loop().call_later(delay, self.decide)
                return
            self._start(entry, plan)

    def _start(self, entry: ModelEntry, plan: policy.Plan) -> None:
        log.info("plan", extra={"model": entry.id, "plan": _short(plan)})
        entry.to(S.LOADING)
        entry.bytes, entry.progress = entry.needed, Progress(phase="queued", fraction=0.0)
        self._claims += 1
        victims = [self.entries[v.id] for v in plan.victims]
        for victim in victims:
            victim.to(S.DRAINING)
            victim.queue.close()
        self._spawn(self._carry_out(entry, plan, victims), f"load-{entry.id}")

    async def _carry_out(self, entry: ModelEntry, plan: policy.Plan, victims: list[ModelEntry]) -> None:
        started = entry.clock()
        link: SlotLink | None = None
        claimed = True
        try:
            if victims:
                entry.progress = Progress(phase="evicting", fraction=0.0, detail=", ".join(v.id for v in victims))
                await asyncio.gather(*(self._leave(v, f"for {entry.id}") for v in victims))
            while self._held(besides=entry) + entry.needed > self.budget:  # others that are still leaving
                await self._change()
            entry.progress = Progress(phase="starting", fraction=0.02)
            link = await self.pool.take(entry.recipe.engine.name)
            self._claims, claimed = self._claims - 1, False
            entry.link = link
            try:
                loaded = await self._load_into(entry, link)
            except RoundhouseError as error:
                if error.code not in MEMORY_FAULTS or not await self._make_room(entry, link):
                    raise
                link = entry.link = await self.pool.take(entry.recipe.engine.name)
                loaded = await self._load_into(entry, link)
        except RoundhouseError as error:
            if claimed:
                self._claims -= 1
            await self._load_failed(entry, link, error)
            return
        seconds = entry.clock() - started
        self._observer.loaded(entry, loaded, seconds, plan.expected_seconds, plan.needed)
        entry.loaded, entry.bytes, entry.needed = loaded, loaded.resident_bytes, loaded.resident_bytes
        entry.needed_detail = "as measured at its last load"
        entry.load_seconds = sum(loaded.seconds.values()) or seconds
        entry.loaded_at = entry.last_used = entry.clock()
        entry.loads, entry.wanted_since, entry.progress = entry.loads + 1, None, Progress(phase="ready", fraction=1.0)
        entry.to(S.READY)
        entry.queue.open(link)
        self._note_change()
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

    async def _load_into(self, entry: ModelEntry, link: SlotLink) -> Loaded:
        def report(progress: Progress) -> None:
            entry.progress = progress
            self._note_change()

        recipe = entry.recipe.model_dump_json().encode()
        async with link.call(lambda uid: frames.Load(uid, recipe, str(entry.path), self.device)) as call:
            loaded = await call.done(report)
        if loaded is None:
            raise EngineFailed("The slot ended a load without saying what it holds.")
        return loaded

    async def _load_failed(self, entry: ModelEntry, link: SlotLink | None, error: RoundhouseError) -> None:
        log.error("load failed", extra={"model": entry.id, "cause": error.message, "code": error.code})
        if link is not None:
            await link.end()
        entry.link, entry.progress, entry.wanted_since = None, None, None
        entry.to(S.FAILED)
        failure = entry.fail(error)
        entry.bytes = 0
        self._observer.load_failed(entry, error)
        entry.queue.refuse(
            Unavailable(
                f"Model '{entry.id}' could not be loaded: {error.message}",
                code=error.code,
                retry_after=failure.until - failure.at,
            )
        )
        self._note_change()
        self.decide()

    # --- leaving --------------------------------------------------------------------------------------------------
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
                    await self._change()
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

    def died(self, link: SlotLink) -> None:
        """A slot's process ended by itself or was killed."""
        entry = next((e for e in self.entries.values() if e.link is link), None)
        if entry is None or entry.state not in (S.READY, S.DRAINING):
            return  # a load notices by its call's error
        reason = "its process ended"
        entry.deaths += 1
        entry.link, entry.loaded, entry.bytes = None, None, 0
        entry.to(S.FAILED)
        failure = entry.fail(EngineFailed(f"The process of '{entry.id}' ended."))
        entry.queue.engine_gone()
        self._observer.died(entry, reason)
        log.error("engine died", extra={"model": entry.id, "deaths": entry.deaths})
        self._note_change()
        if len(entry.failures) <= CRASH_LOOP or entry.queue.waiting:
            asyncio.get_running_loop().call_later(
                failure.until - failure.at if len(entry.failures) > 1 else 0.0, self._bring_back, entry
            )
        self.decide()

    def _bring_back(self, entry: ModelEntry) -> None:
        if entry.state is S.FAILED and entry.wanted_since is None:
            entry.wanted_since = entry.clock()
            self.decide()

    # --- housekeeping ---------------------------------------------------------------------------------------------
    async def watch(self, heartbeat: float = 5.0, hung_after: float = 30.0) -> None:
        """For ever: idle time-outs and heartbeats."""
        while True:
            await asyncio.sleep(heartbeat)
            for entry in self.entries.values():
                idle = entry.recipe.residency.idle_timeout
                if entry.state is not S.READY:
                    continue
                if idle and not entry.pinned and not entry.queue.running and entry.clock() - entry.last_used > idle:
                    self._spawn(self._evict(entry, "idle"), f"idle-{entry.id}")
                elif entry.link is not None:
                    self._spawn(self._ping(entry, entry.link, hung_after), f"ping-{entry.id}")

    async def _ping(self, entry: ModelEntry, link: SlotLink, hung_after: float) -> None:
        if sum(task.get_name() == f"ping-{entry.id}" for task in self._tasks) > 1:
            return  # the one before has not been answered yet
        try:
            await link.command(frames.Ping, hung_after)
        except RoundhouseError as error:
            if entry.link is link and entry.state is S.READY:
                log.error("heartbeat failed", extra={"model": entry.id, "cause": error.message})
                await link.end()

    async def close(self) -> None:
        """Stop deciding. Slots are LitServe's to end."""
        self.draining = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _held(self, besides: ModelEntry) -> int:
        return sum(
            e.bytes
            for e in self.entries.values()
            if e is not besides and e.state in HOLDS_MEMORY and not (e.state is S.LOADING and e.link is None)
        )

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=error)

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self) -> None:
        """Wait for the next change of any state, progress or lease."""
        await self._changed.wait()


def _short(plan: policy.Plan) -> dict[str, object]:
    return {
        "verdict": plan.verdict,
        "needed": plan.needed,
        "free": plan.free,
        "victims": [f"{v.action} {v.id}" for v in plan.victims],
        "expected_s": round(plan.expected_seconds, 2),
    }
