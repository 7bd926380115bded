"""Choose adapters for places, and the next request to start. A pure policy.

No I/O, no clock of its own, no threads: the caller tells what happened (`enqueue`, `finish`, `staged`, ...) and asks
`decide(now)` for a plan, which counts as begun the moment it is returned. One instance per loaded base model.

An adapter is on disk, in host memory (staged) or in a device place. A running request holds a lease on its place.
Once the engine has been told to place an adapter that needs no probe, its requests may start (`admit`): the engine lets
each wait for the place. No other adapter may take that place before the placement has ended.

Rules; the same numbers stand at the code that carries them out:
 1. The base needs no place. At most `max_requests` requests run at once, and beside them `spare`: there the first of
    the next one's class starts whose team runs none, in that class and above, or with it no more than its part of
    `max_requests` among the teams that run, by weight; or one that goes before a class above it by its floor, which
    would wait behind it. So a team that comes to a full engine waits for no other's answer to end.
 2. Ready requests (the base, or an adapter in an open place, in a pool that has room) start in order of rank
    (`runtime.scheduling.fair`: class, team and key by what they had, deadline). A blocked request holds nobody up, so
    requests of adapters in places go first: that groups them.
 3. Staging starts as soon as a request is queued, by rank, `staging_at_once` at a time.
 4. Host memory holds `host` adapters. The least recently used idle one leaves; if there is none, a pinned one that
    is in no place, then the one for which only requests of later ranks wait. Adapters in places stay.
 5. A staged adapter gets a free place, or that of the least recently used adapter without leases, pin and waiting
    requests. A place with a lease is never taken.
 6. A request that has waited `max_overtake` seconds for a place closes one: the place of an adapter for which nobody
    of an earlier rank waits takes no new request, and goes to the first blocked adapter once its leases have ended. It
    opens again when the need is gone.
 7. Pinned adapters keep their place, and get one when no request needs it. At least one place stays unpinned. One
    that failed is brought in again only when a request needs it, or when it is pinned once more.
 8. A forgotten or failed adapter leaves as soon as nothing holds it. The requests that started behind a placement
    that failed hold its place until they end.
 9. A swap is charged to the team of the first request that waits for the adapter. Each class that waits gets its
    floor of the work (`runtime.scheduling.fair`).
10. Among the replicas of a model, one with a free turn starts the first in rank of all their lines that it has at hand.
    With turns to spare for its own line, it takes over the first request of the longest line whose replica has none
    that is free, or is away, and brings the adapter in.
11. A request above the class batch waits for no line of a batch to end. Where it could start but for a free turn, or
    its adapter waits for a place that closes, `revoke` names lines of class batch: those in that place, and the newest
    ones, which have done least, one for each such request. A turn or place is free once the line has ended, so no other
    rule sees more than an early end. Not while `can_revoke` is false. Lines earn no floor (rule 9).

The bound on waiting, for requests of one key, whose ranks are arrivals: W + (⌈A/m⌉ + 1)·(S + 2P + 2D) + ⌈(Q+1)/R⌉·D. W
is max_overtake, R max_requests, S and P the longest staging and placing (with its probe), D the longest run, with the
wait in the engine for its adapter's place; Q requests were waiting when it came, for A adapters, its own
counted; m = min(places, staging_at_once, max(host, places + 1) - places) adapters can be brought in side by side. The
argument: for the first one, rule 6 finds a place at the latest after `max_overtake`, because an unpinned place that it
may not take belongs to a request before it; that place drains within D, staging and placing take S and P, and rule 2
gives it the next free slot, within D. Nothing that is younger can be put before it in any of the four. Among several
keys and teams the same holds for who is first in rank, and it stays first, once its class is owed its floor or no class
above it waits, until it starts, a team or key that waited before has less, or one comes that has no more than it:
`runtime.scheduling.fair` bounds how much those get meanwhile.

A second order of turns is inside the engines for texts, among the items of requests that run:
`models.batching.plan.Turns`. It knows no ranks.
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
    """The actions for now.

    A staging may begin only when the drops of this and of earlier plans have ended: the host tier has no room for both,
    and one digest may stand in both.

    place: (digest, digest whose place it takes, or None for a free place).
    start: request ids, in order; each has its lease.
    adopt: request ids that wait in this replica's line from now on, those that start among them.
    revoke: ids of requests to end; `finish` follows, as for any other.
    wake_at: call `decide` again at this time, if nothing happens before; None: only when something happens.
    """

    stage: tuple[str, ...] = ()
    place: tuple[tuple[str, str | None], ...] = ()
    drop: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    wake_at: float | None = None
    adopt: tuple[str, ...] = ()
    revoke: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """An adapter's tier, and its counts since the engine's base was first loaded."""

    tier: Tier
    pinned: bool
    running: int
    waiting: int
    hits: int
    """Requests that found the adapter in a place when they came."""
    misses: int
    placements: int
    evictions: int
    """Times that it lost its place."""


@dataclass(slots=True)
class Counts:
    """Running figures of one adapter; meanings as in `AdapterStatus`."""

    hits: int = 0
    misses: int = 0
    placements: int = 0
    evictions: int = 0


_NOTHING = PlacementPlan((), (), (), (), None)


class Placement:
    """The request scheduler of one base model. See the module's rules.

    Args:
        places: device places of the engine (vLLM: max_loras).
        host: adapters that host memory holds, those in places included; at least places + 1 is used, because an
            adapter must be staged before another one gives up its place.
        max_overtake: seconds after which a blocked request may close a place. 0: strict order of rank.
        floor: the least part of the work of a class that waits.
        pools: parts of `max_requests`.
        accounts: those of the model, which its replicas share.
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
        self._waiting = WaitingRequests(ModelAccounts(floor) if accounts is None else accounts)
        self.others: tuple[Placement, ...] = ()
        """The policies of the model's other replicas."""
        self.is_away = False
        """True while its engine is not there: other replicas may take over the requests that wait here."""
        self.can_revoke = True
        """Lines of batches may be ended (rule 11)."""
        self._adopted: list[str] = []
        self._running = RunningRequests(self._waiting, pools or {})
        self._pins = Pins()
        self._make_tiers(host, staging_at_once)
        self._forgotten: set[str] = set()
        self._sizes: tuple[int, int, int, int] | None = None
        self._failed: dict[str, None] = {}
        self._counts: dict[str, Counts] = {}
        self._payers: dict[str, ShareAccounts] = {}
        """The accounts to which the swap of an admitted adapter is charged (rule 9)."""

    def _make_tiers(self, host: int, staging_at_once: int) -> None:
        self._device = DeviceTier(self.places)
        self._host = HostTier(max(host, self.places + 1), staging_at_once)
        self._moves = Moves(self._device, self._host, self._waiting, self._pins)

    # --- what happened -------------------------------------------------------------------------------------------
    def enqueue(
        self,
        request_id: str,
        digest: str | None,
        now: float,
        claim: QueueRequest = DEFAULT_REQUEST,
    ) -> None:
        """Add a request. ValueError: id in use; Conflict: no adapter places."""
        if request_id in self._running:
            raise ValueError(f"request {request_id} runs already")
        if digest is not None:
            self.check_places()
        self._waiting.add(request_id, digest, now, claim)
        if digest is not None:
            self._forgotten.discard(digest)  # registered again
            self._pins.renew([digest])
            hit = self._device.settled(digest)
            self._count(digest).hits += hit
            self._count(digest).misses += not hit

    def check_places(self) -> None:
        """Raises Conflict when the engine has none for adapters."""
        if not self.places:
            raise Conflict("This model has no adapter places: set memory.adapters.device in its recipe.")

    def cancel(self, request_id: str) -> bool:
        """Forget a waiting request; False: it does not wait.

        If it runs, abort it and call `finish` then.
        """
        return self._waiting.remove(request_id) is not None

    def hand_over(self, request_id: str, other: "Placement") -> bool:
        """Move a waiting request to another replica's line. False if it does not wait here."""
        if request_id not in self._waiting:
            return False
        self._waiting.move(request_id, other._waiting)
        return True

    def progress(self, request_id: str, work: float) -> None:
        """A started request has had so much work already. Unknown ids are ignored."""
        self._running.progress(request_id, work)

    def finish(self, request_id: str, now: float, work: float | None = None) -> None:
        """A started request has left the engine with that much work; None: as foreseen.

        Unknown ids are ignored (see `reset`).
        """
        request = self._running.end(request_id, work)
        if request is not None and request.digest is not None:
            if self._device.release(request.digest):
                self._used(request.digest, now)
            else:
                self._remove_failed(request.digest)

    def swapped(self, digest: str, work: float) -> None:
        """Rule 9: so much was not done meanwhile. Call it before `placed`."""
        ties = self._payers.pop(digest, None) or self._first_ties(digest)
        if ties is not None:
            ties.charge(work)

    def _first_ties(self, digest: str) -> ShareAccounts | None:
        """The ties of the first request that waits for an adapter."""
        head = self._waiting.head(digest, frozenset())
        return None if head is None else head.request.ties

    def staged(self, digest: str) -> None:
        """A staging ended well."""
        self._host.finish(digest)

    def admit(self, digest: str, now: float) -> None:
        """The engine has been told to place it: requests may start, which wait in the engine for its place."""
        ties = self._first_ties(digest)
        if self._device.admit(digest, now) and ties is not None:
            self._payers[digest] = ties

    def placed(self, digest: str, now: float) -> None:
        """A placement ended well."""
        if self._device.arrived(digest, now):
            self._used(digest, now)
            self._count(digest).placements += 1

    def failed(self, digest: str) -> list[str]:
        """A staging or placement failed. Returns the waiting requests that end with it.

        The digest will stand in a plan's `drop` once no request holds its place; an adapter that was to give up its
        place counts as out.
        """
        self._payers.pop(digest, None)
        if self._device.failed(digest) and digest not in self._device:
            self._remove_failed(digest)
        return self._waiting.remove_all(digest)

    def _remove_failed(self, digest: str) -> None:
        self._host.remove(digest)
        self._failed[digest] = None
        self._pins.failed(digest)

    def forget(self, digest: str) -> None:
        """The adapter left the registry: drop it once nothing waits or runs with it."""
        self.unpin(digest)
        self._forgotten.add(digest)

    def pin(self, digest: str) -> None:
        """Keep the adapter in its next place; Conflict when no place would stay open."""
        self._pins.add(digest, self.places)

    def unpin(self, digest: str) -> None:
        self._pins.remove(digest)

    def resize(self, places: int, host: int, max_requests: int, spare: int = 0) -> None:
        """The next engine has other sizes: they count from the next `reset`."""
        self._sizes = (places, host, max_requests, spare)

    def share(self, floor: float, pools: Mapping[str, Pool]) -> None:
        """Other floors and pools, at once."""
        self._waiting.floors.share = floor
        self._running.pools.change(pools)

    def reset(self) -> list[str]:
        """The engine is new and empty; returns the requests that ran and are lost.

        Waiting requests and pins stay. Reports about work begun before the reset must not be passed on any more.
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

    # --- what to do ----------------------------------------------------------------------------------------------
    def decide(self, now: float) -> PlacementPlan:
        """The next steps, in O(waiting adapters + places²): after events and at `wake_at`."""
        self._adopted.clear()
        if self.others and not self.is_away:
            self._take_over()
        if not (self._waiting or self._failed or self._forgotten or self._pins or any(o._waiting for o in self.others)):
            self._device.closing.clear()
            return _NOTHING
        drop = self._leave()
        heads = self._waiting.heads(self._running.full(self.max_requests))
        if not (heads or drop or self._pins):  # only the base is asked for: no adapter moves
            self._device.closing.clear()
            start, revoke = self._start(now), self._revoke()
            return PlacementPlan(start=tuple(start), adopt=tuple(self._adopted), revoke=tuple(revoke))
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
            tuple(revoke),
        )  # fmt: skip

    def _leave(self) -> list[str]:
        """Rule 8."""
        drop = list(self._failed)
        self._failed.clear()
        for digest in [d for d in self._forgotten if not self._is_in_use(d)]:
            self._forgotten.remove(digest)
            self._counts.pop(digest, None)
            if digest in self._host:
                self._device.remove(digest)
                self._host.remove(digest)
                drop.append(digest)
        return drop

    def _start(self, now: float) -> list[str]:
        """Rules 1 and 2."""
        started: list[str] = []
        ready: list[str | None] = [None, *self._device.open()]
        while len(self._running) < self.max_requests + self._spare and (self._waiting or self.others):
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
        """Rules 2 and 10: of one's own line or, where its rank is better, of another replica's."""
        first = self._waiting.first(ready, self._running.closed(self.max_requests))
        if self.others and (other := self._first_of_others(ready)) is not None:
            head, line = other
            if first is None or head.rank < first.rank:
                self._adopt(head.request, line)
                return head.request
        return None if first is None else first.request

    def _first_of_others(self, ready: list[str | None]) -> tuple[LaneHead, WaitingRequests] | None:
        lines = (other._waiting for other in self.others if other._waiting)
        heads = ((line.first(ready, self._running.closed_of(line, self.max_requests)), line) for line in lines)
        return min(((head, line) for head, line in heads if head is not None), key=lambda head: head[0], default=None)

    def _take_over(self) -> None:
        """Rule 10: take over requests whose adapter still has to be brought in."""
        while len(self._running) + len(self._waiting) < self.max_requests:
            lines = [other._waiting for other in self.others if other._waiting and (other.is_away or other.is_full)]
            line = max(lines, key=len, default=None)
            if line is None:
                return
            closed = self._running.closed_of(line, self.max_requests)
            head = line.first_of_all(closed) if self.places else line.first([None], closed)
            if head is None:
                return
            self._adopt(head.request, line)

    def _adopt(self, request: WaitingRequest, line: WaitingRequests) -> None:
        line.move(request.id, self._waiting)
        self._adopted.append(request.id)

    def _first_with_less(self, ready: list[str | None]) -> WaitingRequest | None:
        """Rule 1, of a full engine."""
        closed = self._running.closed(self.max_requests + self._spare)
        head, has_less = self._waiting.first(ready, closed), self._running.with_less(self.max_requests)
        first = None if head is None else head.request
        if first is None or has_less(first.claim):
            return first
        own = first.claim.service_class
        if self._waiting.floors.owed(own) and any(one < own for one in self._waiting.classes):
            return first  # by its floor: those above it must not wait for an answer to end
        return self._waiting.first_that(ready, closed, own, has_less)

    def _revoke(self) -> list[str]:
        """Rule 11."""
        lines = self._running.revocable() if self.can_revoke else []
        if not lines:
            return []
        closing = {digest for digest, one in self._device.closing.items() if one is not ServiceClass.BATCH}
        result = [line.id for line in lines if line.digest in closing]
        ready = [None, *self._device.open()]
        waiting = self._waiting.count_above_batch(ready, self._running.full(self.max_requests))
        others = (line.id for line in lines if line.digest not in closing)
        result += islice(others, max(0, waiting - self._running.revoked - len(result)))
        for request in result:
            self._running.revoke(request)
        return result

    # --- small questions -----------------------------------------------------------------------------------------
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
        """Whether every turn is taken."""
        return len(self._running) >= self.max_requests

    @property
    def waiting(self) -> int:
        """Requests in its own line."""
        return len(self._waiting)

    @property
    def accounts(self) -> ModelAccounts:
        return self._waiting.accounts

    @property
    def waiting_for_model(self) -> int:
        """Requests in the lines of all replicas."""
        return self._waiting.accounts.waiting

    @property
    def turns(self) -> int:
        """Requests that all present replicas can run at once; those of one replica if none is present."""
        there = [one.max_requests for one in (self, *self.others) if not one.is_away]
        return sum(there) or self.max_requests

    @property
    def waiting_work(self) -> float:
        """Work that waits in its own line."""
        return self._waiting.work

    @property
    def work(self) -> float:
        """Work that waits in its own line or runs."""
        return self._waiting.work + self._running.work

    def running_by_class(self) -> dict[ServiceClass, int]:
        """Running requests of this replica, by class."""
        return self._running.counts()

    @property
    def people_running(self) -> int:
        """Requests from people (`QueueRequest.is_from_people`) that run in this replica."""
        return self._running.from_people

    @property
    def people_waiting(self) -> int:
        """The same that wait for the model."""
        return self._waiting.accounts.from_people

    def waiting_by_class(self) -> dict[ServiceClass, int]:
        return {one: self._waiting.classes[one] for one in ServiceClass}

    def running_in(self, pool: str) -> int:
        return self._running.pools.running(pool)

    def make_room(self, claim: QueueRequest) -> str | None:
        """Remove one request from a full queue for this one, and return it.

        It is the newest request of the team that has more in it than this one's team would, by weight and class. None:
        this one is the one too many.
        """
        return self._waiting.make_room(claim)

    def starts_at_once(self, claim: QueueRequest) -> bool:
        """Nobody waits for the model, and its pool has a place that is free."""
        return not self.waiting_for_model and not self._running.pools.closed([claim.pool], self.max_requests)

    def waiting_in(self, pool: str) -> int:
        """Waiting requests of a pool, for all replicas of the model."""
        return self._waiting.accounts.pools[pool]

    def work_before(self, claim: QueueRequest, *, exactly: bool = False) -> float:
        """See `WaitingRequests.work_before`."""
        return self._waiting.work_before(claim, exactly=exactly)

    def work_of_class(self, service_class: ServiceClass) -> float:
        """See `WaitingRequests.work_of_class`."""
        return self._waiting.work_of_class(service_class)

    @property
    def running(self) -> int:
        return len(self._running)

    def leased(self, digest: str) -> bool:
        """A request runs with it or waits for it."""
        return self._waiting.count(digest) > 0 or self._device.leases(digest) > 0

    def has_place(self, digest: str) -> bool:
        """Whether the adapter is in a place, or on its way into one."""
        return digest in self._device or self._device.moving(digest) or self._host.staging(digest)

    def resident(self) -> tuple[str, ...]:
        return tuple(self._device)

    def moving(self) -> dict[str, str | None]:
        """The adapter on the way into a place, with the one whose place that was."""
        return self._device.incoming()

    @property
    def host_use(self) -> tuple[int, int]:
        """Adapters in host memory, and how many it holds."""
        return len(self._host), self._host.capacity

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
            tier, digest in self._pins, self._device.leases(digest), self._waiting.count(digest), counts.hits,
            counts.misses, counts.placements, counts.evictions,
        )  # fmt: skip
