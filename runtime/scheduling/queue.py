"""The requests of one replica of a model: a bounded queue, leases, and adapters in places.

`runtime.scheduling.placement` (pure) decides the order, by rank. This file starts requests according to its plans, and
`runtime.scheduling.effects` moves adapters in and out. For models without adapters the same policy sees requests for
the base only.

| event          | engine ready                     | engine away                                  |
|----------------|----------------------------------|----------------------------------------------|
| acquire        | waits its turn, then gets a lease| waits; requests the model from residency     |
| release        | next request may start           | nothing to start                             |
| open           | -                                | policy is reset: all adapters unplaced       |
| engine_gone    | running calls fail by their link | -                                            |
| settled        | -                                | returns once no adapter is in transit        |

A sleeping engine counts as away: residency closes the queue, waits until it is settled, and opens it after the wake-up
with all adapters unplaced, as after a load.

Most models have one replica. If there are several, `routing.replicas` chooses the queue of a request, and all queues
share accounts and bounds. A request may move to another replica's queue if its own replica goes away or if the other
one can start it sooner (rule 10 of the policy).
"""

import asyncio
import itertools
import time
from collections.abc import Callable

from models.messages import AdapterRef
from registry.errors import Conflict, RoundhouseError, Unavailable
from registry.recipes.definition import Recipe, Task
from registry.records import Probe
from routing.replicas import ReplicaState
from runtime.scheduling.admission import REVOKED, QueueAdmission, QueueEntry, SlotLease, WaitingBound
from runtime.scheduling.effects import AdapterEffects, AdapterRegistry, AdapterStats
from runtime.scheduling.fair import DEFAULT_REQUEST, ArrivalRates, Pace, Pool, QueueRequest
from runtime.scheduling.placement import TIERS, AdapterStatus, Placement, PlacementPlan
from runtime.scheduling.probes import ProbeResult
from runtime.slots.link import SlotLink
from tenants.caller import ServiceClass

SWAP_SECONDS = 0.2
"""Assumed seconds to bring an adapter into a place, until measured."""


class ModelQueue:
    """The queue of one replica of a model.

    Args:
        recipe: bounds (`queue`), concurrent requests (`batching.max_requests`), adapter places.
        bounds: bounds of the whole server.
        request_load: requests the model from residency; raises if waiting is pointless.
        released: reports to residency that a lease ended or a waiting request was removed.
        registry: has the probes and stored files of adapters; receives their events.
        first: the queue of the model's first replica; None if this is the first.
        number: number of this replica.
    """

    def __init__(
        self,
        recipe: Recipe,
        bounds: WaitingBound,
        request_load: Callable[[], None],
        released: Callable[[], None],
        registry: AdapterRegistry,
        clock: Callable[[], float] = time.monotonic,
        *,
        first: "ModelQueue | None" = None,
        number: int = 1,
    ) -> None:
        self.recipe, self._bounds, self._clock = recipe, bounds, clock
        self._request_load, self._released = request_load, released
        self.number = number
        self.policy: Placement = Placement(
            *_sizes(recipe), spare=_spare(recipe), floor=recipe.queue.floor, pools=_pools(recipe),
            accounts=None if first is None else first.policy.line.accounts,
        )  # fmt: skip
        self.policy.is_away = True
        self.replicas: tuple[ModelQueue, ...] = (self,)
        """All queues of the model."""
        self._link: SlotLink | None = None
        self._ids: itertools.count[int] = itertools.count(1) if first is None else first._ids
        self._waiting: dict[str, QueueEntry] = {}
        self._running: dict[str, QueueEntry] = {}
        self.effects = AdapterEffects(self, registry, clock)
        self._timer: asyncio.TimerHandle | None = None
        self._pace: Pace = Pace() if first is None else first._pace
        self.arrivals: ArrivalRates = ArrivalRates(clock()) if first is None else first.arrivals
        """Work arriving at the model."""
        self.admission = QueueAdmission(self.policy, bounds, self._pace, clock)
        if first is not None:
            _join((*first.replicas, self))

    def leave(self) -> None:
        """Remove this queue from the model's replicas. Nothing may wait or run here any more."""
        _join(tuple(replica for replica in self.replicas if replica is not self))
        _join((self,))

    # --- for residency ----------------------------------------------------------------------------------------------
    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> float | None:
        """Arrival time of the longest waiting request; None if none waits."""
        first = next(iter(self._waiting.values()), None)
        return None if first is None else first.arrived

    def state(self, digest: str | None) -> ReplicaState:
        """Return the replica's state from the view of a request with this adapter."""
        policy = self.policy
        seconds = 0.0
        if digest is not None and not policy.has_place(digest):
            stats = self.effects.stats.get(digest)
            seconds = SWAP_SECONDS if stats is None else stats.stage_seconds + stats.place_seconds or SWAP_SECONDS
        return ReplicaState(self.number, self.admission.start_here(), policy.work, seconds)

    def seconds_of(self, work: float) -> float:
        """Return the expected seconds for one request's work on the engine; 0 before anything was measured."""
        return self._pace.seconds_of(work)

    @property
    def rate(self) -> float:
        """Work per second of one replica with all turns taken; 0 before anything was measured."""
        return self._pace.work(1.0) * self.policy.max_requests

    def adapter_status(self, digest: str) -> AdapterStatus:
        """Return an adapter's best tier, and its counts summed over the replicas."""
        all_ = [replica.policy.status(digest) for replica in self.replicas]
        if len(all_) == 1:
            return all_[0]
        counts = [(s.running, s.waiting, s.hits, s.misses, s.evictions) for s in all_]
        sums = (sum(column) for column in zip(*counts, strict=True))
        return AdapterStatus(min((s.tier for s in all_), key=TIERS.index), any(s.pinned for s in all_), *sums)

    def used_digests(self) -> tuple[set[str], set[str]]:
        """Return the digests of running and of waiting requests, of all replicas."""
        running, waiting = zip(*(replica.policy.used_digests() for replica in self.replicas), strict=True)
        return set().union(*running), set().union(*waiting)

    def adapter_stats(self, digest: str) -> AdapterStats | None:
        """Return the statistics of the replica that used the adapter last; None if none has."""
        stats = [stat for replica in self.replicas if (stat := replica.effects.stats.get(digest)) is not None]
        return max(stats, key=lambda stat: stat.last_used, default=None)

    def probe_result(self, digest: str, probe: Probe) -> ProbeResult | None:
        """Return a replica's result for the probe, preferring failures; None if no replica has run it."""
        results = [
            result for replica in self.replicas if (result := replica.effects.probes.result(digest, probe)) is not None
        ]
        return min(results, key=lambda result: result.passed, default=None)

    def holds(self, digest: str) -> bool:
        """Whether a running or waiting request needs this adapter."""
        return bool(self._running_with(digest) or self._waiting_for(digest))

    def change(self, recipe: Recipe) -> None:
        """Change to another recipe. Bounds apply at once, sizes to the next engine."""
        self.recipe = recipe
        self.policy.resize(*_sizes(recipe), _spare(recipe))
        self.policy.share(recipe.queue.floor, _pools(recipe))

    def open(self, link: SlotLink) -> None:
        """Let requests start, because the engine is ready."""
        self._link = link
        self.effects.probes.clear()
        self.policy.reset()
        self.policy.is_away = False
        self.pump()

    def close(self) -> None:
        """Start no further requests; running ones continue (drain)."""
        self._link, self.policy.is_away = None, True
        self._hand_over()

    def engine_gone(self) -> None:
        """Note that the engine ended or fell asleep and lost its adapters.

        Waiting requests move to other replicas if there are any, otherwise they stay.
        """
        self._link, self.policy.is_away = None, True
        self.policy.reset()
        self._hand_over()

    def _hand_over(self) -> None:
        ready = [replica for replica in self.replicas if replica is not self and replica._link is not None]
        if not ready:
            return
        for ticket in list(self._waiting.values()):
            other = min(ready, key=lambda replica: replica.policy.line.work)
            if self.policy.hand_over(ticket.id, other.policy):
                other._adopt(ticket.id)
        for replica in ready:
            replica.pump()

    def _adopt(self, request: str) -> None:
        """Take over a waiting request from another replica's queue."""
        owner = next(replica for replica in self.replicas if request in replica._waiting)
        ticket = self._waiting[request] = owner._waiting.pop(request)
        ticket.replica = self.number
        if ticket.adapter is not None:
            self.effects.know(ticket.adapter)

    def _queue_of(self, ticket: QueueEntry) -> "ModelQueue":
        if ticket.replica == self.number:
            return self
        return next((replica for replica in self.replicas if replica.number == ticket.replica), self)

    def refuse(self, error: RoundhouseError) -> None:
        """Fail all waiting requests with this error, except those that another replica can serve."""
        self._hand_over()
        for ticket in list(self._waiting.values()):
            if not ticket.turn.done():
                ticket.turn.set_exception(error)

    def abort_running(self, error: RoundhouseError) -> None:
        """Fail all running requests with this error (the drain deadline has passed)."""
        for ticket in self._running.values():
            ticket.abort(error)

    # --- requests ---------------------------------------------------------------------------------------------------
    async def acquire(
        self,
        adapter: AdapterRef | None,
        max_wait: float | None = None,
        probe: Probe | None = None,
        *,
        claim: QueueRequest = DEFAULT_REQUEST,
    ) -> SlotLease:
        """Wait for a turn. `probe`: the probe that the adapter must have passed.

        Raises QueueFull, Unreachable, Conflict (no adapter places, or too small ones) or Unavailable (code
        adapter_probe_failed) at once, and Unavailable after `max_wait` seconds (default: the recipe's
        `queue.max_wait`).
        """
        limit = self.recipe.queue.max_wait if max_wait is None else max_wait
        if adapter is not None:
            self.policy.check_places()
            if adapter.rank > (most := self.recipe.memory.adapters.max_rank):  # lowered since it was registered
                raise Conflict(
                    f"The adapter has rank {adapter.rank}, and this model's places take {most}. Raise "
                    "memory.adapters.max_rank in its recipe."
                )
            if (refusal := self.effects.probes.refusal(adapter.digest, probe)) is not None:
                raise refusal
        self.arrivals.add(claim.service_class, claim.work, self._clock())
        self.admission.check(self.recipe, claim, self._make_room)
        if adapter is not None:
            self.effects.know(adapter)
        loop = asyncio.get_running_loop()
        now = self._clock()
        turn, aborted = loop.create_future(), loop.create_future()
        ticket = QueueEntry(str(next(self._ids)), adapter, probe, now, turn, claim, aborted, replica=self.number)
        ticket.missed = adapter is not None and self.policy.status(adapter.digest).tier != "device"
        self.policy.enqueue(ticket.id, adapter.digest if adapter else None, now, claim)  # first, since it may refuse
        self._waiting[ticket.id] = ticket
        self._bounds.waiting += 1
        leased = False
        try:
            self._request_load()
            self.pump()
            if not ticket.turn.done():  # otherwise it started at once and needs no timeout
                async with asyncio.timeout(limit):
                    await ticket.turn
            link = ticket.turn.result()
            await self._queue_of(ticket)._confirm(ticket, link)
            leased = True
            return SlotLease(ticket, link, self.release, self._progress)
        except TimeoutError:
            why = "it is not loaded yet" if self._queue_of(ticket)._link is None else "it is busy with other requests"
            raise Unavailable(
                f"Model '{self.recipe.id}' could not start this request within {limit:.0f} s: {why}.",
                code="queue_timeout",
                retry_after=self.admission.predicted_wait(claim),
            ) from None
        finally:
            was_waiting = self._queue_of(ticket)._remove(ticket)  # refused, timed out, or the client left
            if not was_waiting and not leased:  # its turn came just as the client left, or its probe failed
                self.release(ticket)
                self._released()  # also if the turn passed it over, because it had left

    def _remove(self, ticket: QueueEntry) -> bool:
        """Remove a request from the line before it starts. Returns False if it has started."""
        if self._waiting.pop(ticket.id, None) is None:
            return False
        self._bounds.waiting -= 1
        self.policy.cancel(ticket.id)
        self.pump()
        self._released()
        return True

    def _make_room(self, claim: QueueRequest) -> bool:
        """Refuse the newest request of the team that fills the queue, if there is such a team."""
        result = self.policy.line.make_room(claim)
        if result is None:
            return False
        ticket = next(replica._waiting[result] for replica in self.replicas if result in replica._waiting)
        if not ticket.turn.done():
            ticket.turn.set_exception(self.admission.full(self.recipe, ticket.claim))
        return True

    def release(self, ticket: QueueEntry) -> None:
        self._queue_of(ticket)._release(ticket)

    def _release(self, ticket: QueueEntry) -> None:
        if self._running.pop(ticket.id, None) is None:
            return
        now = self._clock()
        seconds = now - (ticket.started or now) - ticket.placing_seconds
        self._pace.ended(seconds, ticket.work or ticket.claim.work)
        self.policy.finish(ticket.id, now, ticket.work)
        self.pump()
        self._released()

    def _progress(self, ticket: QueueEntry, work: float) -> None:
        self._queue_of(ticket).policy.progress(ticket.id, work)

    def pump(self) -> None:
        """Carry out the policy's plans, also for replicas with free turns, until nothing more can start."""
        self._pump_own()
        while len(self.replicas) > 1 and self.policy.waiting_for_model:
            free = [replica for replica in self.replicas if replica._link is not None and not replica.policy.is_full]
            if not any(one._pump_own() for one in free):
                return

    def _pump_own(self) -> bool:
        """Do this for this replica alone; return whether requests started or came from other replicas."""
        changed = False
        while self._link is not None:
            plan, is_done = self._carry_out(self._link)
            changed = changed or bool(plan.start or plan.adopt)
            if is_done:
                return changed
        return changed

    def _carry_out(self, link: SlotLink) -> tuple[PlacementPlan, bool]:
        """Carry out one plan. Returns it, and False if a request to start had already left and its turn is free."""
        now = self._clock()
        plan = self.policy.decide(now)
        for request in plan.adopt:
            self._adopt(request)
        self.effects.carry_out(link, plan)
        cancelled = [request for request in plan.start if not self._start(request, link, now)]
        for request in plan.revoke:
            revoked = Unavailable(
                "This batch line gave its turn to an interactive request; it will run again.", code=REVOKED
            )
            self._running[request].abort(revoked)
        for request in cancelled:
            self.policy.finish(request, now, 0.0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if plan.wake_at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.001, plan.wake_at - now), self.pump)
        return plan, not cancelled

    def _start(self, request: str, link: SlotLink, now: float) -> bool:
        """Start a request. Returns False if it was cancelled or refused."""
        ticket = self._waiting.pop(request)
        self._bounds.waiting -= 1
        if ticket.turn.done():  # cancelled or refused just now
            return False
        ticket.started = now
        self._running[request] = ticket
        if ticket.adapter is not None:
            self.effects.used(ticket.adapter.digest)
            if ticket.missed:
                ticket.swap_seconds = self.effects.moved_seconds(ticket.adapter.digest, ticket.arrived)
        ticket.turn.set_result(link)
        return True

    # --- adapters ---------------------------------------------------------------------------------------------------
    def pin_adapter(self, adapter: AdapterRef) -> None:
        """Bring an adapter into a place and keep it. Raises Conflict if no place would stay unpinned."""
        self.policy.pin(adapter.digest)
        self.effects.know(adapter)
        self.pump()

    def unpin_adapter(self, digest: str) -> None:
        self.policy.unpin(digest)
        self.pump()

    def forget_adapter(self, digest: str) -> None:
        """Remove an adapter from the engine because it was removed from the registry."""
        self.effects.forget(digest, is_needed=self.policy.forget(digest))
        self.pump()

    async def _confirm(self, ticket: QueueEntry, link: SlotLink) -> None:
        """Run a probe that was added after the commit, for the first request that needs it.

        Raises Unavailable (code adapter_probe_failed), or the engine's error.
        """
        if ticket.adapter is not None and ticket.probe is not None:
            await self.effects.ask(link, ticket.adapter, ticket.probe, ticket.claim.service_class)
            if (refusal := self.effects.probes.refusal(ticket.adapter.digest, ticket.probe)) is not None:
                raise refusal

    # --- for the effects (runtime.scheduling.effects.AdapterWaiters) --------------------------------------------------
    def is_open(self, link: SlotLink) -> bool:
        """Whether the queue still serves from this engine."""
        return self._link is link

    def probes_waiting(self, digest: str) -> list[Probe | None]:
        """Return the probes of the requests waiting for an adapter; None for a request without one."""
        return list(dict.fromkeys(ticket.probe for ticket in self._waiting_for(digest)))

    def class_waiting(self, digest: str) -> ServiceClass:
        """Return the highest class that waits for an adapter; batch if none does (it is pinned)."""
        return min((ticket.claim.service_class for ticket in self._waiting_for(digest)), default=ServiceClass.BATCH)

    def _waiting_for(self, digest: str) -> list[QueueEntry]:
        return [t for t in self._waiting.values() if t.adapter is not None and t.adapter.digest == digest]

    def _running_with(self, digest: str) -> list[QueueEntry]:
        return [t for t in self._running.values() if t.adapter is not None and t.adapter.digest == digest]

    def adapter_staged(self, digest: str) -> None:
        self.policy.staged(digest)
        self.pump()

    def adapter_admitted(self, digest: str) -> None:
        """Let the adapter's requests start; in the engine they wait for its place."""
        self.policy.admit(digest, self._clock())
        self.pump()

    def adapter_placed(self, digest: str) -> None:
        """Refuse the requests whose own probe failed, let the others start, and time those that started before."""
        now = self._clock()
        for ticket in self._running_with(digest):
            ticket.placing_seconds = now - (ticket.started or now)
            ticket.swap_seconds = self.effects.moved_seconds(digest, ticket.arrived)
        for ticket in self._waiting_for(digest):
            refusal = self.effects.probes.refusal(digest, ticket.probe)
            if refusal is not None and not ticket.turn.done():
                ticket.turn.set_exception(refusal)
                self.policy.cancel(ticket.id)
        stats = self.effects.stats.get(digest, AdapterStats())  # none if it was forgotten in transit
        self.policy.swapped(digest, self._pace.work(stats.place_seconds))
        self.policy.placed(digest, now)
        self.pump()

    def adapter_failed(self, digest: str, error: RoundhouseError) -> None:
        """Fail the requests that wait for this adapter or for its place; the engine and other requests continue."""
        for ticket in self._running_with(digest):
            ticket.abort(error)
        for request in self.policy.failed(digest):
            ticket = self._waiting[request]
            if not ticket.turn.done():
                ticket.turn.set_exception(self.effects.probes.refusal(digest, ticket.probe) or error)
        self.pump()


def _join(queues: tuple[ModelQueue, ...]) -> None:
    for queue in queues:
        queue.replicas = queues
        queue.policy.others = tuple(other.policy for other in queues if other is not queue)


def _pools(recipe: Recipe) -> dict[str, Pool]:
    return {name: Pool(pool.reserved, pool.max_requests) for name, pool in recipe.pools.items()}


def _spare(recipe: Recipe) -> int:
    return recipe.batching.spare_places if recipe.task is Task.CHAT else 0


def _sizes(recipe: Recipe) -> tuple[int, int, int]:
    """Return the number of adapter places, staged adapters, and concurrent requests."""
    places = recipe.memory.adapters
    return places.device, places.host, recipe.task.at_once(recipe.batching.max_requests)
