"""The one writer of the model table: wishes in, plans by `policy.plan`, effects carried out here.

Everything runs on the gateway's event loop. A decision never awaits: it reads a snapshot, changes states, and starts
tasks that carry the change out; each task ends by asking for the next decision.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import cast

from models.messages import Loaded, Progress
from registry.errors import Conflict, DoesNotFit, EngineFailed, RoundhouseError, Unavailable
from runtime.residency import policy
from runtime.residency.entry import ModelEntry
from runtime.residency.table import Observer, S, log
from runtime.residency.victims import NO_LIMIT
from runtime.residency.waking import Waking
from runtime.slots import frames
from runtime.slots.death import UNKNOWN, Cause
from runtime.slots.link import SlotLink
from runtime.slots.pool import SlotPool

AWAY = frozenset({S.ABSENT, S.FAILED, S.ASLEEP})
MEMORY_FAULTS = frozenset({"out_of_memory", "engine_died"})
"""Codes of a failed load after which it is tried once more with the idle models gone."""


class ResidencyManager(Waking):
    """Brings models in and out under a byte budget.

    Args:
        entries, pool, budget, observer, memory_back, host_budget: see `runtime.residency.table.Table`.
        device: what `Load` frames name.
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
        host_budget: int = NO_LIMIT,
    ) -> None:
        super().__init__(entries, pool, budget, observer, memory_back, host_budget)
        self.device, self.patience = device, patience
        self._timer: asyncio.TimerHandle | None = None
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
            if entry.wanted_since is None:  # it was given up, perhaps at once
                if entry.state is S.FAILED and entry.failure is not None:
                    raise entry.failure.cause
                if entry.state is S.ASLEEP:
                    raise DoesNotFit(self.plan(entry).why)
                if entry.state is S.ABSENT:
                    raise Conflict(f"Model '{entry.id}' was unloaded while it loaded.")
            await self.change()

    def released(self, entry: ModelEntry) -> None:
        """A request ended."""
        entry.last_used = entry.clock()
        self._note_change()
        self.decide()

    # --- decisions ------------------------------------------------------------------------------------------------
    def _snapshot(self) -> policy.Snapshot:
        residents = tuple(r for entry in self.entries.values() if (r := entry.resident()) is not None)
        now = next(iter(self.entries.values())).clock() if self.entries else 0.0
        return policy.Snapshot(self.budget, residents, self.pool.free - len(self._claims), now, self.host_budget)

    def _need(self, entry: ModelEntry, since: float) -> policy.Need:
        return policy.Need(
            entry.id,
            entry.needed,
            entry.return_seconds,
            since,
            self.patience,
            detail=entry.needed_detail,
            host=entry.host_bytes + entry.host_adapters if entry.state is S.ASLEEP else entry.host_needed,
        )

    def decide(self) -> None:
        """Serve the line of wanted models, oldest wish first; the head of the line is never overtaken."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.draining:
            return
        self._relieve()
        line = [e for e in self.entries.values() if e.wanted_since is not None and e.state in AWAY]
        for entry in sorted(line, key=lambda e: e.wanted_since or 0.0):
            assert entry.wanted_since is not None
            if entry.state not in AWAY or self._must_fetch(entry):  # asleep before, and ended for one ahead of it
                continue
            plan = policy.plan(self._snapshot(), self._need(entry, entry.wanted_since))
            if plan.verdict == "impossible":
                entry.wanted_since = None
                entry.queue.refuse(DoesNotFit(plan.why))
                if entry.state is S.ABSENT:
                    entry.to(S.LOADING)
                    entry.to(S.FAILED)
                if entry.state is S.FAILED:
                    entry.fail(DoesNotFit(plan.why))
                self._note_change()
                continue
            if plan.verdict == "wait":
                if plan.retry_at is not None:
                    delay = max(0.01, plan.retry_at - entry.clock())
                    self._timer = asyncio.get_running_loop().call_later(delay, self.decide)
                return
            self._start(entry, plan)

    def _relieve(self) -> None:
        """A load or a full step took more than was planned, and a budget is overdrawn: idle models leave."""
        snapshot = self._snapshot()
        plan = policy.plan(snapshot, policy.Need("", 0, 0.0, snapshot.now, patience=math.inf, slot=False))
        if plan.free >= 0 and plan.host_free >= 0:
            return
        for victim in self._dismiss_all(plan.victims):
            self._spawn(self._leave(victim, "overdrawn budget"), f"relief-{victim.id}")

    def _start(self, entry: ModelEntry, plan: policy.Plan) -> None:
        log.info("plan", extra={"model": entry.id, "plan": _short(plan)})
        entry.to(S.LOADING)
        entry.progress = Progress(phase="queued", fraction=0.0)
        wakes = plan.verdict == "wake"
        if wakes:
            entry.claim = entry.needed
        else:
            entry.bytes, entry.host_bytes = entry.needed, entry.host_needed
            self._claims.add(entry.id)
        victims = self._dismiss_all(plan.victims)
        come = self._wake(entry, victims) if wakes else self._carry_out(entry, plan, victims)
        self._spawn(come, f"load-{entry.id}")

    async def _carry_out(self, entry: ModelEntry, plan: policy.Plan, victims: list[ModelEntry]) -> None:
        started = entry.clock()
        try:
            await self._wait_for_room(entry, victims)
            loaded = await self._load_afresh(entry)
        except Exception as error:  # whatever it is, the entry must not stay LOADING for ever
            self._claims.discard(entry.id)
            if not isinstance(error, RoundhouseError):
                log.exception("unmapped error in a load")
                error = EngineFailed(f"The load failed inside the server: {type(error).__name__}.")
            await self._load_failed(entry, entry.link, error)
            return
        seconds = entry.clock() - started
        self._observer.loaded(entry, loaded, seconds, plan.expected_seconds, plan.needed)
        entry.load_seconds = sum(loaded.seconds.values()) or seconds
        entry.peak = max(entry.peak, loaded.resident_bytes)
        entry.loaded, entry.bytes, entry.needed = loaded, entry.peak, entry.peak
        entry.host_bytes = entry.host_needed = loaded.host_bytes + entry.host_adapters
        entry.needed_detail = "as measured at its last load"
        entry.loads += 1
        self._open(entry, cast(SlotLink, entry.link))

    async def _load_afresh(self, entry: ModelEntry) -> Loaded:
        """In an empty slot, and in a second one if memory runs out in the first and others can make room."""
        entry.progress = Progress(phase="starting", fraction=0.02)
        engine = entry.recipe.engine.name
        await self.pool.cool(self.budget - self.held(besides=entry) - entry.needed, keep=engine)
        link = entry.link = await self.pool.take(engine)
        self._claims.discard(entry.id)
        try:
            return await self._load_into(entry, link)
        except RoundhouseError as error:
            if error.code not in MEMORY_FAULTS or link.cause.code == "engine_hung":
                raise
            reason = Cause.of(error) if link.cause is UNKNOWN else link.cause
            if not await self._make_room(entry, link, reason):
                raise
        entry.link = link = await self.pool.take(engine)
        return await self._load_into(entry, link)

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
        if link is not None and link.cause is not UNKNOWN:
            error = EngineFailed(f"The engine died while it loaded: {link.cause.text}.", code=link.cause.code)
        log.error("load failed", extra={"model": entry.id, "cause": error.message, "code": error.code})
        if link is not None:
            await link.end()
        entry.link, entry.progress, entry.wanted_since = None, None, None
        entry.to(S.FAILED)
        failure = entry.fail(error)
        entry.bytes = entry.host_bytes = 0
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

    async def close(self) -> None:
        """Stop deciding. Slots are LitServe's to end."""
        self.draining = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _short(plan: policy.Plan) -> dict[str, object]:
    return {
        "verdict": plan.verdict,
        "needed": plan.needed,
        "free": plan.free,
        "victims": [f"{v.action} {v.id}" for v in plan.victims],
        "expected_s": round(plan.expected_seconds, 2),
    }
