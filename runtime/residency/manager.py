"""The only writer of the model table. Gets plans from `policy.plan` and carries them out.

Everything runs on the gateway's event loop. A decision never awaits: it reads a snapshot, changes states, and starts
tasks that carry out the change. Each task ends by requesting the next decision.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import replace

from models.estimate import Estimate
from registry import learning
from registry.errors import Conflict, DoesNotFit, NotFound, RoundhouseError, Unavailable
from runtime.residency import policy
from runtime.residency.drainer import Drainer
from runtime.residency.entry import LoadFailure, ModelEntry
from runtime.residency.loader import Loader
from runtime.residency.outlook import plan_all
from runtime.residency.replicas import ReplicaScaler, need_of
from runtime.residency.states import HOLDS_MEMORY
from runtime.residency.table import S, Table
from runtime.residency.updates import Fetch, ModelFetcher, RecipeExchanger
from runtime.residency.watcher import Watcher

NOT_RESIDENT = frozenset({S.ABSENT, S.FAILED, S.ASLEEP})
SLOT_SECONDS = 1.0
"""Seconds until the next check whether an added slot may still come."""


class ResidencyManager:
    """Loads and evicts models under a byte budget for each device.

    | request | ABSENT        | FAILED                | ASLEEP       | READY           | loading or leaving           |
    |---------|---------------|-----------------------|--------------|-----------------|------------------------------|
    | request | plans a load  | refused until the     | plans a wake | nothing to do   | joins the line once it has   |
    | _load   |               | back-off is over      |              |                 | left                         |
    | load    | the same, and | the same, ignoring    | the same,    | nothing to do   | waits until it is ready      |
    |         | waits         | the back-off          | and waits    |                 |                              |
    | unload  | nothing to do | nothing to do         | ends         | drains and ends | stops a load that no request |
    |         |               |                       |              |                 | waits for; else waits, also  |
    |         |               |                       |              |                 | until those requests have    |
    |         |               |                       |              |                 | begun, then acts by its      |
    |         |               |                       |              |                 | new state                    |

    `Loader` and `ModelFetcher` bring models in, `Drainer` removes them, `RecipeExchanger` changes them, and `Watcher`
    handles deaths, growth and idle time. Only these and the manager write entries.

    Args:
        table: written only by the manager and its parts.
        fetch: fetches the missing files of a model.
        revise: see `Loader`.
        patience: seconds that a waiting model leaves busy ones alone before the least recently used one must drain.
        working_margin: see `registry.learning.most`.
    """

    def __init__(
        self,
        table: Table,
        fetch: Fetch,
        revise: Callable[[ModelEntry], Awaitable[Hashable]],
        patience: float = 1.0,
        working_margin: int = learning.WORKING_MARGIN,
    ) -> None:
        self.table, self.patience = table, patience
        self.drainer = Drainer(self.table, self.decide)
        self.loader = Loader(self.table, self.drainer, self.decide, revise)
        self.fetcher = ModelFetcher(self.table, self.decide, fetch)
        self.scaler = ReplicaScaler(self.table, self.loader, self.decide)
        self.watcher = Watcher(self.table, self.drainer, self.decide, working_margin, self.scaler.look)
        self.exchanger = RecipeExchanger(self.table, self.drainer)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # --- queries --------------------------------------------------------------------------------------------------
    @property
    def entries(self) -> Mapping[str, ModelEntry]:
        """The models, each represented by its first replica."""
        return self.table.models

    def get(self, model: str) -> ModelEntry:
        return self.table.get(model)

    def plan(self, entry: ModelEntry) -> policy.Plan:
        """Plan a load of this model without changing anything."""
        since = entry.clock() if entry.requested_since is None else entry.requested_since
        return policy.plan(self.table.snapshot(), need_of(entry, since, self.patience))

    def plans(self, entry: ModelEntry) -> list[policy.Plan]:
        """Plan a load of each replica that a load brings in, in order of their numbers."""
        now = entry.clock()
        needs = []
        for replica in entry.replicas[: entry.recipe.replicas.least]:
            known = replica if replica.path is not None or replica.state in HOLDS_MEMORY else entry.lead
            since = now if replica.requested_since is None else replica.requested_since
            needs.append(replace(need_of(known, since, self.patience), id=replica.id))
        return plan_all(self.table.snapshot(), needs)

    def expected_wait(self, entry: ModelEntry) -> float:
        """Predict the seconds until the model is ready for a request that arrives now."""
        plan = self.plan(entry) if entry.state in NOT_RESIDENT else None
        return entry.remaining_load_seconds if plan is None else plan.expected_seconds

    def preview(self, model: str, estimate: Estimate, load_seconds: float = 0.0) -> policy.Plan:
        """Plan a load of a model of this size, which need not be on this server yet."""
        host, now = 0 if self.table.counts_processes else estimate.host, self.table.clock()
        need = policy.Need(
            model, estimate.on_each, load_seconds, now, self.patience, detail=estimate.explain(), host=host,
            spread=estimate.devices,
        )  # fmt: skip
        return policy.plan(self.table.snapshot(), need)

    def next_to_leave(self) -> tuple[policy.Victim, ...]:
        """Return the next victims on each device if room is needed."""
        return policy.next_to_leave(self.table.snapshot())

    # --- adding and removing --------------------------------------------------------------------------------------
    def add(self, entry: ModelEntry) -> None:
        """Add a model or a replica, so that it may be requested."""
        self.table.add(entry)
        self.table.note_change()

    async def remove(self, entry: ModelEntry, error: RoundhouseError) -> None:
        """Remove a model for good.

        Running requests finish, waiting ones fail with `error`, and new ones are not accepted.
        """
        await asyncio.gather(*(self.remove_replica(replica, error) for replica in list(entry.replicas)))

    async def remove_replica(self, entry: ModelEntry, error: RoundhouseError) -> None:
        """Remove one replica for good, as in `remove`."""
        entry.is_leaving = True
        self.exchanger.forget(entry.id)
        while entry.state not in (S.ABSENT, S.FAILED) or entry.queue.waiting:
            entry.queue.refuse(error)
            entry.requested_since = None  # otherwise the next decision may load it
            self.fetcher.cancel(entry)
            await self._unload(entry, "removed")
            await asyncio.sleep(0)  # lets the refused requests leave the queue
        entry.requested_since = None
        self.table.remove(entry)
        if entry.number > 1:
            entry.replicas[:] = [replica for replica in entry.replicas if replica is not entry]
            entry.queue.leave()
        self.table.note_change()

    def begin_fetch(self, entry: ModelEntry) -> None:
        """Start fetching its files if they are missing, without a load."""
        if entry.path is None and entry.state in NOT_RESIDENT:
            self.fetcher.start(entry)

    async def fetch(self, entry: ModelEntry) -> None:
        """Fetch its files and wait for them. Raises the error of the source."""
        self.begin_fetch(entry)
        while entry.path is None and entry.state is S.LOADING:
            await self.table.change()
        if entry.path is None and entry.failure is not None:
            raise entry.failure.cause

    # --- requests -------------------------------------------------------------------------------------------------
    def request_load(self, entry: ModelEntry) -> None:
        """Request the model for a waiting request. Raises an error if waiting is pointless."""
        if entry.lead.state is S.READY:
            return
        if entry.state is S.FAILED and not entry.has_others:
            failure = entry.failure
            if failure is not None and entry.clock() < failure.until:
                wait, cause = failure.until - entry.clock(), failure.cause.message.rstrip(".")
                raise Unavailable(
                    f"Model '{entry.id}' failed: {cause}. The next attempt starts in {math.ceil(wait)} s.",
                    code="model_failed",
                    retry_after=wait,
                )
        for replica in entry.replicas if len(entry.replicas) > 1 else (entry,):
            if replica.requested_since is None and (replica is entry or not replica.is_extra):
                replica.requested_since = entry.clock()
        self.decide()

    def check_given_up(self, entry: ModelEntry) -> None:
        """Raise DoesNotFit if the load just requested was given up at once, because it can never start."""
        if entry.requested_since is None and entry.state in NOT_RESIDENT and not entry.has_others:
            raise DoesNotFit(self.plan(entry).why)

    def begin_load(self, entry: ModelEntry) -> None:
        """Request the model on an operator's request, without a back-off. Raises DoesNotFit if it can never start."""
        if entry.state is S.FAILED:
            entry.failures.clear()
        self.request_load(entry)
        self.check_given_up(entry)

    async def load(self, entry: ModelEntry) -> None:
        """Load the model on an operator's request and wait for it. Raises the load's error."""
        self.begin_load(entry)
        while entry.lead.state is not S.READY:
            if entry.is_leaving:
                raise removed_error(entry.model)
            if entry.requested_since is None:  # the load was given up, perhaps immediately
                if entry.state is S.FAILED and entry.failure is not None:
                    raise entry.failure.cause
                if entry.state is S.FAILED:  # with the recipe before this one
                    self.request_load(entry)
                    continue
                if entry.state is S.ASLEEP:
                    raise DoesNotFit(self.plan(entry).why)
                if entry.state is S.ABSENT:
                    raise Conflict(f"Model '{entry.id}' was unloaded while it loaded.")
            await self.table.change()

    async def unload(self, entry: ModelEntry, force: bool = False) -> None:
        """Unload the model on an operator's request, after its running requests.

        Raises Conflict if it is pinned and `force` is false.
        """
        if not force:
            check_unpinned(entry)
        with self.scaler.pause(entry.model):  # otherwise each would come back while another leaves, endlessly
            for replica in entry.replicas:
                self._withdraw(replica)
            await asyncio.gather(*(self._unload(replica) for replica in entry.replicas))
        self.decide()

    def _withdraw(self, entry: ModelEntry) -> None:
        """Take a replica out of the line, unless it is the first one and requests wait for it."""
        if entry.number > 1:
            entry.requested_since = None
        elif entry.state in NOT_RESIDENT and entry.requested_since is not None and not entry.queue.waiting:
            entry.requested_since = None
            if entry.state is S.FAILED:
                entry.to(S.ABSENT)
            self.table.note_change()

    async def _unload(self, entry: ModelEntry, reason: str = "by hand") -> None:
        called, had_to_load = entry.clock(), False
        while entry.state in (S.LOADING, S.UNLOADING, S.DRAINING) or (had_to_load and _serves_earlier(entry, called)):
            had_to_load = had_to_load or entry.state is S.LOADING
            if not entry.queue.waiting:
                self.loader.stop(entry)
            await self.table.change()
        if entry.state in (S.READY, S.ASLEEP):
            await self.drainer.evict(entry, reason)

    def pin(self, entry: ModelEntry, pinned: bool) -> None:
        """Keep the model in memory once loaded, or allow its eviction again. Does not load it."""
        for replica in entry.replicas:
            replica.pinned = pinned and not replica.is_extra
        self.decide()

    # --- events ---------------------------------------------------------------------------------------------------
    def released_by(self, replica: str, model: str) -> None:
        """Note the end of a request, which may outlast its removed model while its client reads slowly."""
        entry = self.table.entries.get(replica) or self.table.models.get(model)
        if entry is not None:
            self.released(entry)

    def released(self, entry: ModelEntry) -> None:
        """Note that a request ended or no longer waits."""
        entry.last_used = entry.clock()
        self.table.note_change()
        if not entry.leases:  # only a model that became idle may make room for others
            self.decide()

    def cut_off(self, error: RoundhouseError) -> None:
        """Fail all running and waiting requests, and load nothing more."""
        self._closed = True
        for entry in self.table.entries.values():
            entry.queue.close()
        for entry in self.table.entries.values():
            entry.queue.refuse(error)
            entry.queue.abort_running(error)

    # --- decisions ------------------------------------------------------------------------------------------------
    def decide(self) -> None:
        """Serve the models in line, oldest request first. The head is never overtaken."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed:
            return
        self._relieve()
        self.scaler.forget()
        self._serve_line()
        while self.scaler.claim_waiting():  # this decision may have evicted another replica
            self._serve_line()

    def _serve_line(self) -> None:
        seen: set[str] = set()
        while (entry := self._next_in_line(seen)) is not None:
            seen.add(entry.id)
            assert entry.requested_since is not None
            if self.fetcher.start(entry):
                continue
            plan = policy.plan(self.table.snapshot(), need_of(entry, entry.requested_since, self.patience))
            if plan.verdict == "impossible":
                self._give_up(entry, plan)
                continue
            if plan.verdict == "wait":
                self._decide_later(plan.retry_at, entry.clock())
                return
            if plan.adds_slot:  # the new slot triggers the next decision; memory may have run out by then
                self.table.pool.add_slot()
                self._decide_later(entry.clock() + SLOT_SECONDS, entry.clock())
                return
            self.loader.start(entry, plan)
        self.scaler.start()

    def _next_in_line(self, seen: Collection[str]) -> ModelEntry | None:
        """Return the model requested longest ago, except those in `seen`.

        Called again after each load, because that load may evict the last replica of a model.
        """
        self.scaler.claim_waiting()
        line = [
            (entry.requested_since, number, entry)
            for number, entry in enumerate(self.table.entries.values())
            if entry.requested_since is not None
            and entry.state in NOT_RESIDENT
            and not entry.has_others
            and entry.id not in seen
        ]
        return min(line)[2] if line else None

    def _decide_later(self, at: float | None, now: float) -> None:
        """Decide again at `at`, or earlier if already planned."""
        if at is None or math.isinf(at):
            return
        loop, delay = asyncio.get_running_loop(), max(0.01, at - now)
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay:
                return
            self._timer.cancel()
        self._timer = loop.call_later(delay, self.decide)

    def _relieve(self) -> None:
        """Evict idle models if a load or a full engine step has exceeded a budget."""
        for budget in self.table.budgets:
            snapshot = self.table.snapshot()
            if not policy.is_overdrawn(snapshot, budget.device):  # the usual case, checked after every request
                continue
            nothing = policy.Need("", 0, 0.0, snapshot.now, patience=math.inf, slot=False, devices=(budget.device,))
            plan = policy.plan(snapshot, nothing)
            self._decide_later(plan.retry_at, snapshot.now)  # if all candidates were loaded just now
            for victim in self.drainer.dismiss_all(plan.victims):
                self.table.spawn(self.drainer.leave(victim, "overdrawn budget"), f"relief-{victim.id}")

    def _give_up(self, entry: ModelEntry, plan: policy.Plan) -> None:
        """Fail the waiting requests of a model that can never start.

        Without a back-off, since another pin or recipe makes it fit, and a further attempt costs nothing.
        """
        error, now = DoesNotFit(plan.why), entry.clock()
        entry.requested_since = None
        entry.queue.refuse(error)
        if entry.state is S.ABSENT:
            entry.to(S.LOADING)
            entry.to(S.FAILED)
        if entry.state is S.FAILED:
            entry.failures = [LoadFailure(error, now, now)]
        self.table.note_change()

    async def close(self) -> None:
        """Stop deciding. LitServe ends the slots."""
        self._closed = True
        await self.table.close()


def removed_error(model: str) -> NotFound:
    return NotFound(f"Model '{model}' was removed.", param="model")


def _serves_earlier(entry: ModelEntry, time: float) -> bool:
    """Whether it is ready, and requests that came until `time` wait for their turn or their adapter."""
    oldest = entry.queue.oldest
    return entry.is_ready and oldest is not None and oldest <= time


def check_unpinned(entry: ModelEntry) -> None:
    """Raise Conflict for a pinned model, which leaves only by force."""
    if entry.pinned:
        raise Conflict(
            f"Model '{entry.id}' is pinned. Unpin it first, or force it (force=true, --force).", code="model_pinned"
        )
