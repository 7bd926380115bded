"""The waiting and running requests of one model."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from registry.base.counting import count_down
from runtime.scheduling.fair import (
    Floors,
    Lane,
    Pool,
    Pools,
    QueueRequest,
    Rank,
    ShareAccount,
    ShareAccounts,
    ShareGroup,
    WaitingRequest,
    rank,
)
from tenants.caller import ServiceClass

DEFAULT_DUE_SECONDS = 600.0
"""Seconds; within its key a request with a later deadline, or none, is ordered as if it had this one."""


class LaneHead(NamedTuple):
    """The first request of an adapter, or of the base."""

    rank: Rank
    request: WaitingRequest


class ModelAccounts:
    """State shared by a model's replicas: team accounts, floors of classes, waiting lines."""

    def __init__(self, floor: float = 0.05) -> None:
        self.teams = {one: ShareGroup() for one in ServiceClass}
        self.floors = Floors(floor)
        self.classes: Counter[ServiceClass] = Counter()
        """Number of waiting requests, by class."""
        self.pools: Counter[str] = Counter()
        """Number of waiting requests, by pool."""
        self.from_people = 0
        """Number of waiting requests from people (`QueueRequest.is_from_people`)."""
        self.revocable = 0
        """Number of waiting batch lines (`QueueRequest.is_revocable`)."""
        self.of_team: dict[ShareAccount, dict[str, WaitingRequests]] = {}
        """The waiting requests of each team with their lines, newest last."""
        self.arrivals = 0

    @property
    def waiting(self) -> int:
        return self.classes.total()

    def earning(self) -> Collection[ServiceClass]:
        """Return the waiting classes that earn a floor."""
        if self.classes[ServiceClass.BATCH] > self.revocable:
            return self.classes
        return [one for one in self.classes if one is not ServiceClass.BATCH]


class WaitingRequests:
    """The requests waiting for one replica: O(log n) to add or remove, heads in O(1) per lane."""

    def __init__(self, accounts: ModelAccounts) -> None:
        self.accounts = accounts
        self.classes = self.accounts.classes
        """Number of requests that wait for the model, by class."""
        self.floors, self._teams = self.accounts.floors, self.accounts.teams
        self._by_id: dict[str, WaitingRequest] = {}
        self._lanes: dict[str | None, dict[ServiceClass, dict[str, Lane]]] = {}
        self._counts: Counter[str | None] = Counter()
        self.pools: Counter[str] = Counter()
        """Number of requests that wait here, by pool."""
        self.work = 0.0

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    def add(self, request_id: str, digest: str | None, now: float, claim: QueueRequest) -> None:
        """Add a request. Raises ValueError if the id is already waiting."""
        if request_id in self._by_id:
            raise ValueError(f"request {request_id} is already waiting")
        accounts = self.accounts
        accounts.arrivals += 1
        team = self._teams[claim.service_class].join(claim.team, claim.weight, claim.work)
        ties = ShareAccounts(team, team.keys.join(claim.key, 1.0, claim.work))
        latest = now + DEFAULT_DUE_SECONDS
        due = latest if claim.due is None else min(claim.due, latest)
        accounts.classes[claim.service_class] += 1
        accounts.pools[claim.pool] += 1
        accounts.from_people += claim.is_from_people
        accounts.revocable += claim.is_revocable
        self._put(WaitingRequest(request_id, digest, now, accounts.arrivals, claim, ties, due))

    def remove(self, request_id: str) -> WaitingRequest | None:
        if request_id not in self._by_id:
            return None
        request = self._take(request_id)
        claim, accounts = request.claim, self.accounts
        mine = accounts.of_team[request.ties.team]
        del mine[request_id]
        if not mine:
            del accounts.of_team[request.ties.team]
        count_down(accounts.classes, claim.service_class)
        count_down(accounts.pools, claim.pool)
        accounts.from_people -= claim.is_from_people
        accounts.revocable -= claim.is_revocable
        request.ties.team.keys.leave(request.ties.key, claim.work)
        self._teams[claim.service_class].leave(request.ties.team, claim.work)
        if claim.service_class not in accounts.classes:
            self.floors.clear_credit(claim.service_class)
        return request

    def move(self, request_id: str, line: "WaitingRequests") -> None:
        """Move a request to the line of another replica. Its rank and its accounts do not change."""
        line._put(self._take(request_id))

    def _put(self, request: WaitingRequest) -> None:
        claim, digest = request.claim, request.digest
        self._by_id[request.id] = request
        self.accounts.of_team.setdefault(request.ties.team, {})[request.id] = self
        lanes = self._lanes.setdefault(digest, {}).setdefault(claim.service_class, {})
        if claim.pool not in lanes:
            lanes[claim.pool] = Lane()
        lanes[claim.pool].add(request)
        self._counts[digest] += 1
        self.pools[claim.pool] += 1
        self.work += claim.work

    def _take(self, request_id: str) -> WaitingRequest:
        request = self._by_id.pop(request_id)
        claim, digest = request.claim, request.digest
        lanes = self._lanes[digest][claim.service_class]
        lanes[claim.pool].remove(request)
        if not lanes[claim.pool]:
            del lanes[claim.pool]
            if not lanes:
                del self._lanes[digest][claim.service_class]
                if not self._lanes[digest]:
                    del self._lanes[digest]
        count_down(self._counts, digest)
        count_down(self.pools, claim.pool)
        self.work = self.work - claim.work if self._by_id else 0.0  # clears rounding errors
        return request

    def remove_all(self, digest: str) -> list[str]:
        """Remove all requests waiting for a digest; return their ids in order of arrival."""
        lanes = [lane for pools in self._lanes.get(digest, {}).values() for lane in pools.values()]
        result = [request for lane in lanes for request in lane.requests()]
        result.sort(key=lambda request: request.arrival)
        for request in result:
            self.remove(request.id)
        return [request.id for request in result]

    def count(self, digest: str | None) -> int:
        return self._counts[digest]

    def digests(self) -> set[str]:
        return {digest for digest in self._lanes if digest is not None}

    def count_above_batch(self, digests: Iterable[str | None], closed: frozenset[str]) -> int:
        """Count waiting requests of these digests in classes above batch, in pools that are not closed."""
        return sum(
            len(lane)
            for digest in digests
            for service_class, lanes in self._lanes.get(digest, {}).items()
            for pool, lane in lanes.items()
            if service_class is not ServiceClass.BATCH and pool not in closed
        )

    def head(self, digest: str | None, closed: frozenset[str]) -> LaneHead | None:
        """Return the first request of a digest whose pool is not closed."""
        lanes = self._lanes.get(digest)
        return None if lanes is None else self._head(lanes, self._order(), closed)

    def heads(self, closed: frozenset[str]) -> dict[str, LaneHead]:
        """Return the first request of each adapter (without the base), in order of rank."""
        adapters = [(digest, lanes) for digest, lanes in self._lanes.items() if digest is not None]
        if not adapters:
            return {}
        order = self._order()
        result: list[tuple[LaneHead, str]] = []
        for digest, lanes in adapters:
            if (head := self._head(lanes, order, closed)) is not None:
                result.append((head, digest))
        result.sort()
        return {digest: head for head, digest in result}

    def first(self, digests: Iterable[str | None], closed: frozenset[str]) -> LaneHead | None:
        """Return the first request of these digests."""
        return self._first(digests, closed, self._order(), None)

    def first_of_all(self, closed: frozenset[str]) -> LaneHead | None:
        """Return the first request of all, whatever adapter it needs."""
        return self._first(self._lanes, closed, self._order(), None)

    def first_that(
        self,
        digests: Iterable[str | None],
        closed: frozenset[str],
        service_class: ServiceClass,
        fits: Callable[[QueueRequest], bool],
    ) -> WaitingRequest | None:
        """Return the first request of a class whose team fits (see `Lane.first_where`). O(waiting teams)."""
        head = self._first(digests, closed, [service_class], fits)
        return None if head is None else head.request

    def _first(
        self,
        digests: Iterable[str | None],
        closed: frozenset[str],
        order: list[ServiceClass],
        fits: Callable[[QueueRequest], bool] | None,
    ) -> LaneHead | None:
        best: LaneHead | None = None
        for digest in digests:
            lanes = self._lanes.get(digest)
            head = None if lanes is None else self._head(lanes, order, closed, fits)
            if head is not None and (best is None or head.rank < best.rank):
                best = head
        return best

    def make_room(self, claim: QueueRequest) -> str | None:
        """Remove the newest request of the team with the most waiting requests for its weight; return its id.

        Only from this class or a lower one. None if no other team has more than the claim's team would.
        """
        mine = self._teams[claim.service_class].find(claim.team)
        own = ((mine.waiting if mine is not None else 0) + 1) / claim.weight
        for service_class in reversed(ServiceClass):
            if service_class < claim.service_class:
                break
            group = self._teams[service_class].waiting
            if not group:
                continue
            largest = max(group, key=lambda team: team.waiting / team.weight)
            if service_class > claim.service_class or (largest is not mine and largest.waiting / largest.weight > own):
                newest, line = next(reversed(self.accounts.of_team[largest].items()))
                line.remove(newest)
                return newest
        return None

    def work_before(self, claim: QueueRequest, *, exactly: bool = False) -> float:
        """Return the work ahead of a request that arrives now, if nothing arrives after it.

        Assumes that it is the last of its key. With `exactly` it is placed by its deadline, in O(requests of the team).
        """
        group = self._teams[claim.service_class]
        team = group.find(claim.team)
        own = claim.work
        if team is not None:
            mine = claim.work + (self._due_before(team, claim) if exactly else team.keys.queued(claim.key))
            own = mine + team.keys.ahead(claim.key, 1.0, mine)
        level = own + group.ahead(claim.team, claim.weight, own)
        return self._above(claim.service_class, level) + level - claim.work

    def work_of_class(self, service_class: ServiceClass) -> float:
        """Return the waiting work of a class plus the work of higher classes that precedes it."""
        level = self._work(service_class)
        return self._above(service_class, level) + level

    def _above(self, service_class: ServiceClass, level: float) -> float:
        """Return the work of higher classes that precedes `level` work of this one, given its floor."""
        above = sum(self._work(one) for one in ServiceClass if one < service_class)
        return min(above, level / self.floors.share) if self.floors.share else above

    def _due_before(self, team: ShareAccount, claim: QueueRequest) -> float:
        of_team = (line._by_id[one] for one, line in self.accounts.of_team.get(team, {}).items())
        due = inf if claim.due is None else claim.due
        return sum(one.claim.work for one in of_team if one.claim.key == claim.key and one.due <= due)

    def _work(self, service_class: ServiceClass) -> float:
        waiting = self._teams[service_class].waiting
        return 0.0 if waiting is None else sum(account.queued for account in waiting)

    def _order(self) -> list[ServiceClass]:
        """Return the waiting classes in the order in which they are served now."""
        return self.floors.order(self.classes)

    def _head(
        self,
        lanes: dict[ServiceClass, dict[str, Lane]],
        order: list[ServiceClass],
        closed: frozenset[str],
        fits: Callable[[QueueRequest], bool] | None = None,
    ) -> LaneHead | None:
        for position, service_class in enumerate(order):
            best: LaneHead | None = None
            for pool, lane in lanes.get(service_class, {}).items():
                if pool in closed:
                    continue
                request = lane.first() if fits is None else lane.first_where(fits)
                if request is not None:
                    head = LaneHead(rank(request, position), request)
                    if best is None or head.rank < best.rank:
                        best = head
            if best is not None:
                return best
        return None


_NONE = Counter[ServiceClass]()


@dataclass(slots=True)
class _Run:
    request: WaitingRequest
    charged: float
    pays: bool
    """Whether it preceded others by its class's floor."""
    is_revoked: bool = False

    @property
    def is_revocable(self) -> bool:
        return self.request.claim.is_revocable and not self.is_revoked


class RunningRequests:
    """The running requests of one replica.

    | event    | effect on the accounts of team and key, and on the class's floor |
    |----------|------------------------------------------------------------------|
    | start    | charged the expected work                                        |
    | progress | charged the work beyond that, at once                            |
    | end      | charged the rest, or refunded what was charged but not done      |
    | clear    | refunded everything, because the engine and its work are gone    |
    """

    def __init__(self, waiting: WaitingRequests, pools: Mapping[str, Pool]) -> None:
        self._waiting, self._runs = waiting, dict[str, _Run]()
        self._of_team: dict[str, tuple[float, Counter[ServiceClass]]] = {}
        """Teams with running requests: weight, and number by class."""
        self.pools = Pools(pools)
        self.work = 0.0
        """Expected work of all running requests."""
        self.revoked = self._revocable = self.from_people = 0
        """Number of running requests that were revoked, may be revoked, or are from people."""

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._runs

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def closed(self, places: int) -> frozenset[str]:
        """Return the pools with waiting requests of which none may start now."""
        return self.closed_of(self._waiting, places)

    def closed_of(self, line: WaitingRequests, places: int) -> frozenset[str]:
        """Return the same for another replica's line, if its requests were to run here."""
        return self.pools.closed(line.pools, places)

    def full(self, places: int) -> frozenset[str]:
        """Return the pools with waiting requests whose places are all taken, so that no adapter is moved for them."""
        return self.pools.full(self._waiting.pools, places)

    def with_less(self, places: int) -> Callable[[QueueRequest], bool]:
        """Return a test whether a claim's team runs nothing, or would not exceed its share of the places.

        Counts its class and above, by weight. Shares are rounded down: rounding up would favour small teams forever,
        whatever they received.
        """
        whole = sum(weight for weight, _ in self._of_team.values())

        def has_less(claim: QueueRequest) -> bool:
            _, mine = self._of_team.get(claim.team, (0.0, _NONE))
            among = whole if mine else whole + claim.weight
            runs = sum(count for one, count in mine.items() if one <= claim.service_class)
            return not runs or (runs + 1) * among <= places * claim.weight

        return has_less

    def start(self, request: WaitingRequest) -> None:
        """Move a request from waiting to running."""
        claim = request.claim
        run = _Run(request, 0.0, self._waiting.floors.owed(claim.service_class))
        self._revocable += run.is_revocable
        self.from_people += claim.is_from_people
        self._waiting.remove(request.id)
        self._runs[request.id] = run
        self.pools.start(claim.pool)
        _, mine = self._of_team.get(claim.team, (0.0, Counter[ServiceClass]()))
        mine[claim.service_class] += 1
        self._of_team[claim.team] = claim.weight, mine
        self.work += claim.work
        self._charge(run, claim.work)

    def revocable(self) -> list[WaitingRequest]:
        """Return the batch lines that may still be revoked, newest first."""
        if not self._revocable:
            return []
        return [run.request for run in reversed(self._runs.values()) if run.is_revocable]

    def unreserved(self, requests: Iterable[WaitingRequest]) -> Iterator[str]:
        """Iterate over the ids of those running requests whose turns are not reserved for their pool."""
        beyond = Counter[str]()
        for run in self._runs.values():
            beyond[run.request.claim.pool] += not run.is_revoked
        for request in requests:
            pool = request.claim.pool
            if beyond[pool] > self.pools.reserved(pool):
                beyond[pool] -= 1
                yield request.id

    def revoke(self, request_id: str) -> None:
        """Mark a request whose call is being ended."""
        self._runs[request_id].is_revoked = True
        self._revocable -= 1
        self.revoked += 1

    def progress(self, request_id: str, work: float) -> None:
        """Report a request's work so far. Ignores unknown ids."""
        run = self._runs.get(request_id)
        if run is not None and work > run.charged:
            self._charge(run, work - run.charged)

    def end(self, request_id: str, work: float | None) -> WaitingRequest | None:
        """End a request with its total work (None if as expected). Returns None for an unknown id."""
        run = self._runs.pop(request_id, None)
        if run is None:
            return None
        claim = run.request.claim
        self._revocable -= run.is_revocable
        self.revoked -= run.is_revoked
        self.from_people -= claim.is_from_people
        self.pools.end(claim.pool)
        _, mine = self._of_team[claim.team]
        mine[claim.service_class] -= 1
        if not mine.total():
            del self._of_team[claim.team]
        self.work = self.work - claim.work if self._runs else 0.0
        if work is not None:
            self._charge(run, work - run.charged)
        return run.request

    def counts(self) -> dict[ServiceClass, int]:
        result = dict.fromkeys(ServiceClass, 0)
        for run in self._runs.values():
            result[run.request.claim.service_class] += 1
        return result

    def clear(self) -> None:
        for run in self._runs.values():
            self._charge(run, -run.charged)
        self._runs.clear()
        self._of_team.clear()
        self.work = 0.0
        self.revoked = self._revocable = self.from_people = 0
        self.pools.clear()

    def _charge(self, run: _Run, work: float) -> None:
        run.charged += work
        run.request.ties.charge(work)
        service_class = run.request.claim.service_class
        self._waiting.floors.done(service_class, work, self._waiting.accounts.earning(), pays=run.pays)
