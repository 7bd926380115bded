"""Choose which adapters get places, and which request starts next. A pure policy.

No I/O, no clock of its own, no threads: the caller reports events (`enqueue`, `finish`, `staged`, ...) and asks
`decide(now)` for a plan. The plan counts as started the moment it is returned. One instance per loaded base model.

An adapter is on disk, in host memory (staged) or in a device place. A running request holds a lease on its place.
Once the engine has been told to place an adapter that needs no probe, its requests may start (`admit`): the engine
makes each of them wait for the place. No other adapter may take that place before the placement has ended.

Rules, with the same numbers in the code:
 1. The base needs no place. At most `max_requests` requests run at once, plus `spare` more. A spare turn goes to the
    first request of the next one's class whose team runs nothing in that class and above, or would not exceed its share
    of `max_requests`, by weight among the running teams. It also goes to a request that precedes a higher class by its
    floor, because that class would wait behind it. So at a full engine no team has to wait for another's answer to end.
 2. Ready requests (for the base, or for an adapter in an open place, in a pool with room) start in order of rank
    (`runtime.scheduling.fair`: class, team and key by work received, deadline). A blocked request delays no others, so
    requests for adapters in places go first, which groups them.
 3. Staging starts as soon as a request is queued, by rank, `staging_at_once` at a time.
 4. Host memory holds `host` adapters. The least recently used idle one is evicted; if there is none, a pinned one that
    is in no place, then the one for which only requests of later ranks wait. Adapters in places stay.
 5. A staged adapter gets a free place, or that of the least recently used adapter without leases, pin or waiting
    requests. A place with a lease is never taken.
 6. A request that has waited `max_overtake` seconds for a place closes one, namely a place of an adapter for which no
    request of an earlier rank waits. The closed place takes no new requests and goes to the first blocked adapter once
    its leases have ended. It reopens when it is no longer needed.
 7. Pinned adapters keep their place, and get one when no request needs it. At least one place stays unpinned. A pinned
    adapter that failed is retried only when a request needs it or when it is pinned again.
 8. A forgotten or failed adapter is dropped as soon as nothing uses it. Requests that started behind a failed placement
    hold its place until they end.
 9. A swap is charged to the team of the first request waiting for the adapter. Each waiting class gets its floor of the
    work (`runtime.scheduling.fair`).
10. A replica with a free turn starts the request of the best rank in all lines of the model for which it is ready. If
    it has more turns than its own line needs, it takes over the first request of the longest line whose replica is full
    or away, and brings the adapter in.
11. A request above the class batch never waits for a batch line to end. If it lacks only a free turn, or if its adapter
    waits for a closing place, `revoke` names lines of class batch: those in that place, and one for each such request,
    newest first because these have done the least, but none in a turn that is reserved for its pool. The turn or place
    is free once the line has ended, so to the other rules it just ended early. Does not apply while `can_revoke` is
    false. Lines earn no floor (rule 9).

Bound on the wait, for requests of one key, which rank by arrival: W + (⌈A/m⌉ + 1)·(S + 2P + 2D) + ⌈(Q+1)/R⌉·D. W is
max_overtake, R max_requests, S and P the longest staging and placing (with its probe), D the longest run including the
wait in the engine for the adapter's place. Q requests were waiting at its arrival, for A adapters including its own.
m = min(places, staging_at_once, max(host, places + 1) - places) adapters can be brought in in parallel. Argument: for
the first request, rule 6 finds a place after `max_overtake` at the latest, because an unpinned place that it may not
take belongs to an earlier request. That place drains within D, staging and placing take S and P, and rule 2 gives it
the next free slot, within D. No younger request can get ahead of it in any of the four. With several keys and teams the
same holds for the request of the first rank, once its class is owed its floor or no higher class waits. It stays first
until it starts, until a team or key that waited before has received less, or until one arrives that has received no
more. `runtime.scheduling.fair` bounds how much these get in the meantime.

The text engines have a second order of turns, among the items of running requests
(`models.batching.plan.RequestRing`). It does not use ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from registry.errors import Conflict
from runtime.scheduling.fair import DEFAULT_REQUEST, Pool, QueueRequest, ShareAccounts, WaitingRequest
from runtime.scheduling.requests import LaneHead, ModelAccounts, RunningRequests, WaitingRequests
from runtime.scheduling.tiers import DeviceTier, HostTier, Move, Moves, Pins
from tenants.caller import ServiceClass

Tier = Literal["device", "host", "staging", "disk"]
TIERS: tuple[Tier, ...] = ("device", "host", "staging", "disk")


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """The actions to take now.

    A staging may start only after the drops of this and earlier plans have ended, because the host tier has no room for
    both, and the same digest may be in both.

    place: (digest, digest whose place it takes, or None for a free place).
    start: request ids, in order; each has its lease.
    adopt: request ids moved to this replica's line, including those that start.
    revoke: ids of requests to end; call `finish` for them as for any other.
    forgotten: removed digests that nothing uses any more, whether or not they are in `drop`.
    wake_at: call `decide` again at this time, unless an event comes first; None to wait for the next event.
    """

    stage: tuple[str, ...] = ()
    place: tuple[tuple[str, str | None], ...] = ()
    drop: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    wake_at: float | None = None
    adopt: tuple[str, ...] = ()
    revoke: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """An adapter's tier, and its counts since the base model was first loaded."""

    tier: Tier
    pinned: bool
    running: int
    waiting: int
    hits: int
    """Requests whose adapter was in a place when they arrived."""
    misses: int
    evictions: int
    """Number of times it lost its place."""


@dataclass(slots=True)
class Counts:
    """Counters of one adapter, as in `AdapterStatus`."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0


_NOTHING = PlacementPlan()


class Placement:
    """The request scheduler of one base model, by the rules above.

    Args:
        places: device places of the engine (vLLM: max_loras).
        host: adapters that fit in host memory, including those in places. At least places + 1 is used, because an
            adapter must be staged before another one gives up its place.
        max_overtake: seconds after which a blocked request may close a place; 0 for strict order of rank.
        floor: the minimum share of the work for each waiting class.
        pools: parts of `max_requests`.
        accounts: the model's accounts, shared by its replicas.
    """

    def __init__(
        self,
        places: int,
        host: int,
        max_requests: int,
        *,
        max_overtake: float = 0.5,
        staging_at_once: int = 4,
        spare: int = 0,
        floor: float = 0.05,
        pools: Mapping[str, Pool] | None = None,
        accounts: ModelAccounts | None = None,
    ) -> None:
        if min(max_requests, staging_at_once) < 1:
            raise ValueError("max_requests and staging_at_once must be at least 1")
        if min(places, max_overtake, spare) < 0:
            raise ValueError("places, max_overtake and spare must be at least 0")
        self.places, self.max_requests, self.max_overtake = places, max_requests, max_overtake
        self._spare = spare
        self.line: WaitingRequests = WaitingRequests(ModelAccounts(floor) if accounts is None else accounts)
        """The requests that wait for this replica."""
        self.others: tuple[Placement, ...] = ()
        """The policies of the model's other replicas."""
        self.is_away = False
        """Whether its engine is absent, so that other replicas may take over the requests waiting here."""
        self.can_revoke = True
        """Whether batch lines may be ended (rule 11)."""
        self._adopted: list[str] = []
        self._running = RunningRequests(self.line, pools or {})
        self._pins = Pins()
        self._make_tiers(host, staging_at_once)
        self._forgotten: set[str] = set()
        self._sizes: tuple[int, int, int, int] | None = None
        self._failed: dict[str, None] = {}
        self._counts: dict[str, Counts] = {}
        self._payers: dict[str, ShareAccounts] = {}
        """Adapter digest to the accounts charged for its swap, once admitted (rule 9)."""

    def _make_tiers(self, host: int, staging_at_once: int) -> None:
        self._device = DeviceTier(self.places)
        self._host = HostTier(max(host, self.places + 1), staging_at_once)
        self._moves = Moves(self._device, self._host, self.line, self._pins)

    # --- events --------------------------------------------------------------------------------------------------
    def enqueue(self, request_id: str, digest: str | None, now: float, claim: QueueRequest = DEFAULT_REQUEST) -> None:
        """Add a request. Raises ValueError if the id is in use, Conflict if there are no adapter places."""
        if request_id in self._running:
            raise ValueError(f"request {request_id} is already running")
        if digest is not None:
            self.check_places()
        self.line.add(request_id, digest, now, claim)
        if digest is not None:
            self._forgotten.discard(digest)  # registered again
            self._pins.renew([digest])
            hit = self._device.settled(digest)
            self._count(digest).hits += hit
            self._count(digest).misses += not hit

    def check_places(self) -> None:
        """Raise Conflict if the engine has no adapter places."""
        if not self.places:
            raise Conflict("This model has no adapter places. Set memory.adapters.device in its recipe.")

    def cancel(self, request_id: str) -> bool:
        """Remove a waiting request. Returns False if it does not wait.

        If it is running, abort it and then call `finish`.
        """
        return self.line.remove(request_id) is not None

    def hand_over(self, request_id: str, other: "Placement") -> bool:
        """Move a waiting request to another replica's line. Returns False if it does not wait here."""
        if request_id not in self.line:
            return False
        self.line.move(request_id, other.line)
        return True

    def progress(self, request_id: str, work: float) -> None:
        """Report the work done so far for a running request. Ignores unknown ids."""
        self._running.progress(request_id, work)

    def finish(self, request_id: str, now: float, work: float | None = None) -> None:
        """Report that a request has left the engine, with its total work (None if as expected).

        Ignores unknown ids (see `reset`).
        """
        request = self._running.end(request_id, work)
        if request is not None and request.digest is not None:
            if self._device.release(request.digest):
                self._used(request.digest, now)
            else:
                self._remove_failed(request.digest)

    def swapped(self, digest: str, work: float) -> None:
        """Charge the work that the swap displaced (rule 9). Call it before `placed`."""
        ties = self._payers.pop(digest, None) or self._first_ties(digest)
        if ties is not None:
            ties.charge(work)

    def _first_ties(self, digest: str) -> ShareAccounts | None:
        """Return the accounts of the first request waiting for an adapter."""
        head = self.line.head(digest, frozenset())
        return None if head is None else head.request.ties

    def staged(self, digest: str) -> None:
        """Report a successful staging."""
        self._host.finish(digest)

    def admit(self, digest: str, now: float) -> None:
        """Report that the engine was told to place an adapter; its requests may start and wait there for the place."""
        ties = self._first_ties(digest)
        if self._device.admit(digest, now) and ties is not None:
            self._payers[digest] = ties

    def placed(self, digest: str, now: float) -> None:
        """Report a successful placement."""
        if self._device.arrived(digest, now):
            self._used(digest, now)

    def failed(self, digest: str) -> list[str]:
        """Report a failed staging or placement. Returns the waiting requests that fail with it.

        The digest will be in a plan's `drop` once no request holds its place. An adapter that was to give up its place
        counts as removed.
        """
        self._payers.pop(digest, None)
        if self._device.failed(digest) and digest not in self._device:
            self._remove_failed(digest)
        return self.line.remove_all(digest)

    def _remove_failed(self, digest: str) -> None:
        self._host.remove(digest)
        self._failed[digest] = None
        self._pins.failed(digest)

    def forget(self, digest: str) -> bool:
        """Drop an adapter that was removed from the registry, once no request waits for it or runs with it.

        Returns whether a later plan will have it in `forgotten`; False if the engine does not have it.
        """
        self.unpin(digest)
        if digest in self._host or self._is_in_use(digest):
            self._forgotten.add(digest)
            return True
        self._counts.pop(digest, None)
        return False

    def pin(self, digest: str) -> None:
        """Bring an adapter in and keep it. Raises Conflict if no place would stay unpinned."""
        self._pins.add(digest, self.places)

    def unpin(self, digest: str) -> None:
        self._pins.remove(digest)

    def resize(self, places: int, host: int, max_requests: int, spare: int = 0) -> None:
        """Set the sizes of the next engine; they apply from the next `reset`."""
        self._sizes = (places, host, max_requests, spare)

    def share(self, floor: float, pools: Mapping[str, Pool]) -> None:
        """Set the floor and the pools, with immediate effect."""
        self.line.floors.share = floor
        self._running.pools.change(pools)

    def reset(self) -> list[str]:
        """Start over with a new, empty engine. Returns the running requests, which are lost.

        Waiting requests and pins stay. The caller must not report events of the old engine afterwards.
        """
        lost = list(self._running)
        for table in (self._running, self._device, self._host, self._failed, self._payers):
            table.clear()
        if self._sizes is not None:
            self.places, host, self.max_requests, self._spare = self._sizes
            self._make_tiers(host, self._host.staging_at_once)
            self._pins.fit(self.places)
            self._sizes = None
        self._pins.renew()
        return lost

    # --- decisions -----------------------------------------------------------------------------------------------
    def decide(self, now: float) -> PlacementPlan:
        """Return the next steps. Call it after events and at `wake_at`. O(waiting adapters + places²)."""
        self._adopted.clear()
        if self.others and not self.is_away:
            self._take_over()
        if not (self.line or self._failed or self._forgotten or self._pins or any(o.line for o in self.others)):
            self._device.closing.clear()
            return _NOTHING
        drop, forgotten = self._leave()
        heads = self.line.heads(self._running.full(self.max_requests))
        if not (heads or drop or self._pins):  # all requests are for the base, so no adapter moves
            self._device.closing.clear()
            start, revoke = self._start(now), self._revoke()
            return PlacementPlan(
                start=tuple(start), adopt=tuple(self._adopted), revoke=tuple(revoke), forgotten=forgotten
            )
        blocked = [head for digest, head in heads.items() if digest not in self._device]
        overdue = [head for head in blocked if now >= head.request.since + self.max_overtake]
        place = self._moves.close_places(overdue, heads)
        start = self._start(now)
        revoke = self._revoke()
        place += self._moves.fill_places(blocked)
        self._count_evictions(place)
        needed = {str(head.request.digest): head.rank for head in blocked}
        stage, dropped = self._host.begin(needed, self._pins.needed(), self._device.touched())  # rules 3 and 4
        overtakes = [head.request.since + self.max_overtake for head in blocked]
        wake_at = min((at for at in overtakes if at > now), default=None)
        return PlacementPlan(
            tuple(stage), tuple(place), tuple(drop + dropped), tuple(start), wake_at, tuple(self._adopted),
            tuple(revoke), forgotten,
        )  # fmt: skip

    def _leave(self) -> tuple[list[str], tuple[str, ...]]:
        """Rule 8. Returns the digests to drop, and those that are forgotten."""
        drop = list(self._failed)
        self._failed.clear()
        forgotten = tuple(digest for digest in self._forgotten if not self._is_in_use(digest))
        for digest in forgotten:
            self._forgotten.remove(digest)
            self._counts.pop(digest, None)
            if digest in self._host:
                self._device.remove(digest)
                self._host.remove(digest)
                drop.append(digest)
        return drop, forgotten

    def _start(self, now: float) -> list[str]:
        """Rules 1 and 2."""
        started: list[str] = []
        ready: list[str | None] = [None, *self._device.open()]
        while len(self._running) < self.max_requests + self._spare and (self.line or self.others):
            if len(self._running) < self.max_requests:
                request = self._first(ready)
            else:
                request = self._first_with_less(ready)
            if request is None:
                break
            self._running.start(request)
            if request.digest is not None:
                self._device.lease(request.digest)
                self._used(request.digest, now)
            started.append(request.id)
        return started

    def _first(self, ready: list[str | None]) -> WaitingRequest | None:
        """Rules 2 and 10: the first of this replica's line or, if its rank is better, of another's."""
        first = self.line.first(ready, self._running.closed(self.max_requests))
        if self.others and (other := self._first_of_others(ready)) is not None:
            head, line = other
            if first is None or head.rank < first.rank:
                self._adopt(head.request, line)
                return head.request
        return None if first is None else first.request

    def _first_of_others(self, ready: list[str | None]) -> tuple[LaneHead, WaitingRequests] | None:
        lines = (other.line for other in self.others if other.line)
        heads = ((line.first(ready, self._running.closed_of(line, self.max_requests)), line) for line in lines)
        return min(((head, line) for head, line in heads if head is not None), key=lambda head: head[0], default=None)

    def _take_over(self) -> None:
        """Rule 10: take over requests whose adapter still has to be brought in."""
        while len(self._running) + len(self.line) < self.max_requests:
            lines = [other.line for other in self.others if other.line and (other.is_away or other.is_full)]
            line = max(lines, key=len, default=None)
            if line is None:
                return
            closed = self._running.closed_of(line, self.max_requests)
            head = line.first_of_all(closed) if self.places else line.first([None], closed)
            if head is None:
                return
            self._adopt(head.request, line)

    def _adopt(self, request: WaitingRequest, line: WaitingRequests) -> None:
        line.move(request.id, self.line)
        self._adopted.append(request.id)

    def _first_with_less(self, ready: list[str | None]) -> WaitingRequest | None:
        """Rule 1, for spare turns."""
        closed = self._running.closed(self.max_requests + self._spare)
        head, has_less = self.line.first(ready, closed), self._running.with_less(self.max_requests)
        first = None if head is None else head.request
        if first is None or has_less(first.claim):
            return first
        own = first.claim.service_class
        if self.line.floors.owed(own) and any(one < own for one in self.line.classes):
            return first  # goes first by its floor; higher classes must not wait behind it for an answer to end
        return self.line.first_that(ready, closed, own, has_less)

    def _revoke(self) -> list[str]:
        """Rule 11."""
        lines = self._running.revocable() if self.can_revoke else []
        if not lines:
            return []
        closing = {digest for digest, one in self._device.closing.items() if one is not ServiceClass.BATCH}
        result = [line.id for line in lines if line.digest in closing]
        for request in result:
            self._running.revoke(request)
        ready = [None, *self._device.open()]
        waiting = self.line.count_above_batch(ready, self._running.full(self.max_requests))
        others = self._running.unreserved(line for line in lines if line.digest not in closing)
        chosen = list(islice(others, max(0, waiting - self._running.revoked)))
        for request in chosen:
            self._running.revoke(request)
        return result + chosen

    # --- queries -------------------------------------------------------------------------------------------------
    def _is_in_use(self, digest: str) -> bool:
        return self._device.moving(digest) or self._host.staging(digest) or self.leased(digest)

    def _count_evictions(self, moves: list[Move]) -> None:
        for _, victim in moves:
            if victim is not None:
                self._count(victim).evictions += 1

    def _count(self, digest: str) -> Counts:
        return self._counts.setdefault(digest, Counts())

    def _used(self, digest: str, now: float) -> None:
        self._device.used(digest, now)
        self._host.used(digest)

    @property
    def is_full(self) -> bool:
        """Whether all turns are taken."""
        return len(self._running) >= self.max_requests

    @property
    def waiting(self) -> int:
        """Requests in this replica's line."""
        return len(self.line)

    @property
    def waiting_for_model(self) -> int:
        """Requests in the lines of all replicas."""
        return self.line.accounts.waiting

    @property
    def turns(self) -> int:
        """Requests that all present replicas can run at once; those of one replica if none is present."""
        present = [one.max_requests for one in (self, *self.others) if not one.is_away]
        return sum(present) or self.max_requests

    @property
    def work(self) -> float:
        """Waiting and running work of this replica."""
        return self.line.work + self._running.work

    def running_by_class(self) -> dict[ServiceClass, int]:
        """Running requests of this replica, by class."""
        return self._running.counts()

    @property
    def people_running(self) -> int:
        """Running requests from people (`QueueRequest.is_from_people`) in this replica."""
        return self._running.from_people

    @property
    def people_waiting(self) -> int:
        """Requests from people that wait for the model."""
        return self.line.accounts.from_people

    def waiting_by_class(self) -> dict[ServiceClass, int]:
        return {one: self.line.classes[one] for one in ServiceClass}

    def running_in(self, pool: str) -> int:
        return self._running.pools.running(pool)

    def starts_at_once(self, claim: QueueRequest) -> bool:
        """Whether no request waits for the model and the claim's pool has a free place."""
        return not self.waiting_for_model and not self._running.pools.closed([claim.pool], self.max_requests)

    def waiting_in(self, pool: str) -> int:
        """Waiting requests of a pool, for all replicas of the model."""
        return self.line.accounts.pools[pool]

    @property
    def running(self) -> int:
        return len(self._running)

    def leased(self, digest: str) -> bool:
        """Whether a request runs with the adapter or waits for it."""
        return self.line.count(digest) > 0 or self._device.leases(digest) > 0

    def has_place(self, digest: str) -> bool:
        """Whether the adapter is in a place, or on its way into one."""
        return digest in self._device or self._device.moving(digest) or self._host.staging(digest)

    def resident(self) -> tuple[str, ...]:
        return tuple(self._device)

    def moving(self) -> dict[str, str | None]:
        """Return the adapters on their way into a place, with those whose places they take."""
        return self._device.incoming()

    @property
    def host_use(self) -> tuple[int, int]:
        """Number of adapters in host memory, and its capacity."""
        return len(self._host), self._host.capacity

    def used_digests(self) -> tuple[set[str], set[str]]:
        """Return the digests of running and of waiting requests."""
        return self._device.leased(), self.line.digests()

    def status(self, digest: str) -> AdapterStatus:
        counts = self._counts.get(digest, Counts())
        tier: Tier = "disk"
        if self._device.settled(digest):
            tier = "device"
        elif digest in self._host:
            tier = "host"
        elif self._host.staging(digest):
            tier = "staging"
        return AdapterStatus(
            tier, digest in self._pins, self._device.leases(digest), self.line.count(digest), counts.hits,
            counts.misses, counts.evictions,
        )  # fmt: skip
