"""The order of requests, by floors of classes, weights of teams and keys, and deadlines.

Pure: no clock, no I/O, no adapters. Work is in the units of `QueueRequest.work`.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from registry.names import DEFAULT_TEAM
from tenants.caller import ServiceClass


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """The properties of a request that decide its order.

    Teams and keys share by weight within their class. `work` is charged at the start.
    """

    team: str = DEFAULT_TEAM
    key: str = ""
    weight: float = 1.0
    """The team's weight."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    work: float = 1.0
    """Expected work, in units of the work of one prompt token."""
    due: float | None = None
    """Deadline by the queue's clock."""
    pool: str = ""
    """A pool of the recipe; '' for none."""
    is_line: bool = False
    """Whether it is a line of a batch."""

    @property
    def is_revocable(self) -> bool:
        """Whether it is a batch line of class batch: uses idle capacity, may lose its turn, and earns no floor."""
        return self.is_line and self.service_class is ServiceClass.BATCH

    @property
    def is_from_people(self) -> bool:
        """Whether it is above the class batch and not a batch line."""
        return not self.is_line and self.service_class is not ServiceClass.BATCH


DEFAULT_REQUEST = QueueRequest()


class ShareAccount:
    """The account of a team in a class, or of a key of that team."""

    __slots__ = ("counter", "keys", "number", "orders", "queued", "waiting", "weight")

    def __init__(self, weight: float, counter: float, number: int) -> None:
        self.weight, self.counter, self.number = weight, counter, number
        self.waiting = 0
        self.queued = 0.0
        """Waiting work."""
        self.keys = ShareGroup()
        """The keys of a team; empty in a key's own account."""
        self.orders: set[AccountOrder] = set()

    def charge(self, work: float) -> None:
        """Charge work that was done; negative to refund work that was charged but not done."""
        self.counter += work / self.weight
        if work < 0:
            for order in self.orders:
                order.put(self)


_MAX_STALE = 64
"""Stale entries that an order may hold in addition to one per account, because `first` removes them late or never."""


class AccountOrder:
    """Accounts ordered by counter, lowest first, then by age, oldest first.

    Adding and removing take O(log accounts); `first` takes as much for each account that has risen since.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ShareAccount]] = []
        self._entries: dict[ShareAccount, float] = {}
        """The counter in each account's valid heap entry."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ShareAccount]:
        """Iterate over all accounts, unordered."""
        return iter(self._entries)

    def add(self, account: ShareAccount) -> None:
        account.orders.add(self)
        self.put(account)

    def put(self, account: ShareAccount) -> None:
        """Reinsert an account after its counter has fallen."""
        entries = self._entries
        entries[account] = account.counter
        heappush(self._heap, (account.counter, account.number, account))
        if len(self._heap) > 2 * len(entries) + _MAX_STALE:
            self._heap = [(counter, entry.number, entry) for entry, counter in entries.items()]
            heapify(self._heap)

    def discard(self, account: ShareAccount) -> None:
        account.orders.discard(self)
        del self._entries[account]
        if not self._entries:
            self._heap.clear()

    def first(self) -> ShareAccount:
        """Return the lowest account. The order must not be empty."""
        heap, entries = self._heap, self._entries
        while True:
            counter, number, account = heap[0]
            if entries.get(account) != counter:
                heappop(heap)
            elif account.counter != counter:
                entries[account] = account.counter
                heapreplace(heap, (account.counter, number, account))
            else:
                return account


class ShareGroup:
    """Accounts that share by weight: the teams of a class, or the keys of a team."""

    __slots__ = ("_accounts", "_last", "waiting")

    def __init__(self) -> None:
        self._accounts: dict[str, ShareAccount] = {}
        self._last: ShareAccount | None = None
        self.waiting: AccountOrder | None = None
        """Accounts with waiting requests."""

    def join(self, name: str, weight: float, work: float) -> ShareAccount:
        """Note that one more request of this account waits. The latest weight applies."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = ShareAccount(weight, self._level(), len(self._accounts))
        account.weight = weight
        if not account.waiting:
            account.counter = max(account.counter, self._level())
            if self.waiting is None:
                self.waiting = AccountOrder()
            self.waiting.add(account)
        account.waiting += 1
        account.queued += work
        return account

    def leave(self, account: ShareAccount, work: float) -> None:
        """Note that one of the account's requests no longer waits."""
        account.waiting -= 1
        account.queued -= work
        if not account.waiting:
            account.queued = 0.0  # clears rounding errors
            assert self.waiting is not None
            self.waiting.discard(account)
            self._last = account

    def queued(self, name: str) -> float:
        """Return the waiting work of an account."""
        account = self._accounts.get(name)
        return account.queued if account is not None else 0.0

    def find(self, name: str) -> ShareAccount | None:
        return self._accounts.get(name)

    def ahead(self, name: str, weight: float, own: float) -> float:
        """Return the work of others that precedes `own` work of this account, if nothing else arrives.

        O(accounts with waiting requests), because there may be thousands of keys without any.
        """
        mine = self._accounts.get(name)
        others = (account for account in self.waiting or () if account is not mine)
        return sum(min(account.queued, own * account.weight / weight) for account in others)

    def _level(self) -> float:
        if self.waiting:
            return self.waiting.first().counter
        return self._last.counter if self._last is not None else 0.0


class ShareAccounts:
    """The two accounts to which a request is charged."""

    __slots__ = ("key", "team")

    def __init__(self, team: ShareAccount, key: ShareAccount) -> None:
        self.team, self.key = team, key

    def charge(self, work: float) -> None:
        self.team.charge(work)
        self.key.charge(work)


class Rank(NamedTuple):
    """A request's position among the heads of lanes at one moment."""

    position: int
    """Position of its class. A class that is owed its floor precedes those above it."""
    team: float
    """The counter of the team."""
    team_number: int
    key: float
    """The counter of the key."""
    key_number: int
    due: float
    arrival: int
    """Running number of the request in its queue."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRequest:
    """A request in the line. `digest` is None for the base itself; `since` is in clock seconds."""

    id: str
    digest: str | None
    since: float
    arrival: int
    claim: QueueRequest
    ties: ShareAccounts
    due: float
    """The deadline that orders it within its key, or a substitute for one."""


class Lane:
    """Requests in order. Adding and removing take O(log n) plus a move within a list."""

    __slots__ = ("_keys", "_requests", "_teams")

    def __init__(self) -> None:
        self._teams = AccountOrder()
        self._keys: dict[ShareAccount, AccountOrder] = {}
        self._requests: dict[ShareAccount, list[tuple[float, int, WaitingRequest]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._requests.values()))

    def add(self, request: WaitingRequest) -> None:
        team, key = request.ties.team, request.ties.key
        if team not in self._keys:
            self._keys[team] = AccountOrder()
            self._teams.add(team)
        if key not in self._requests:
            self._requests[key] = []
            self._keys[team].add(key)
        insort(self._requests[key], (request.due, request.arrival, request))

    def remove(self, request: WaitingRequest) -> None:
        team, key = request.ties.team, request.ties.key
        queue = self._requests[key]
        del queue[bisect_left(queue, (request.due, request.arrival))]
        if not queue:
            del self._requests[key]
            self._keys[team].discard(key)
            if not self._keys[team]:
                del self._keys[team]
                self._teams.discard(team)

    def first(self) -> WaitingRequest:
        return self._first_of(self._teams.first())

    def first_where(self, fits: Callable[[QueueRequest], bool]) -> WaitingRequest | None:
        """Return the first request among those teams whose own first request fits. O(teams)."""
        fitting = [team for team in self._teams if fits(self._first_of(team).claim)]
        return self._first_of(min(fitting, key=lambda team: (team.counter, team.number))) if fitting else None

    def _first_of(self, team: ShareAccount) -> WaitingRequest:
        return self._requests[self._keys[team].first()][0][2]

    def __bool__(self) -> bool:
        return bool(self._requests)

    def requests(self) -> list[WaitingRequest]:
        """Return all requests, unordered."""
        return [entry[2] for queue in self._requests.values() for entry in queue]


def rank(request: WaitingRequest, position: int) -> Rank:
    """Return the current rank of a lane's first request. position: of its class."""
    team, key = request.ties.team, request.ties.key
    return Rank(position, team.counter, team.number, key.counter, key.number, request.due, request.arrival)


class Floors:
    """Credits of the classes: each waiting class earns `share` of all work that starts.

    While a class has credit, it precedes those above it and pays for what it starts. It may overdraw once and must
    earn that back first. So a class gets its share to within one request, and a class with rare requests does not get
    ahead of others each time.
    """

    def __init__(self, share: float) -> None:
        """Raise ValueError for a share that leaves nothing for the highest class."""
        if not 0 <= share < 0.5:
            raise ValueError("a floor is at least 0 and less than a half")
        self.share = share
        self._earned = dict.fromkeys(ServiceClass, 0.0)

    def owed(self, service_class: ServiceClass) -> bool:
        return self._earned[service_class] > 0

    def order(self, waiting: Collection[ServiceClass]) -> list[ServiceClass]:
        """Return the waiting classes in the order in which they are served."""
        return sorted(waiting, key=lambda one: one if self._earned[one] <= 0 else one - len(self._earned))

    def done(self, service_class: ServiceClass, work: float, waiting: Collection[ServiceClass], *, pays: bool) -> None:
        """Charge work that started, or work beyond what was expected.

        `pays`: the request preceded others by its class's floor.
        """
        if pays:
            self._earned[service_class] -= work
        for one in waiting:
            if one is not ServiceClass.CRITICAL:
                self._earned[one] += self.share * work

    def clear_credit(self, service_class: ServiceClass) -> None:
        """Clear the credit of a class in which nothing waits any more; keep its debt."""
        self._earned[service_class] = min(0.0, self._earned[service_class])


@dataclass(frozen=True, slots=True)
class Pool:
    """A share of a model's places: `reserved` ones are kept free for it, and it never uses more than `most`."""

    reserved: int = 0
    most: int | None = None


class Pools:
    """A model's pools with their running requests, to tell which pools may start a request.

    '' stands for requests that are in no pool; nothing is reserved for them.
    """

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools, self._running = dict(pools), Counter[str]()

    def change(self, pools: Mapping[str, Pool]) -> None:
        self._pools = dict(pools)

    def start(self, pool: str) -> None:
        self._running[pool] += 1

    def end(self, pool: str) -> None:
        self._running[pool] -= 1

    def clear(self) -> None:
        self._running.clear()

    def running(self, pool: str) -> int:
        return self._running[pool]

    def closed(self, names: Iterable[str], places: int) -> frozenset[str]:
        """Return those of the given pools that may not start a request now, with `places` in total."""
        if not self._pools:
            return frozenset() if self._running.total() < places else frozenset(names)
        free = places - self._running.total()
        unused_reservations = {name: max(0, pool.reserved - self._running[name]) for name, pool in self._pools.items()}
        total = sum(unused_reservations.values())
        return frozenset(
            name for name in names if not self._open(name, free - total + unused_reservations.get(name, 0))
        )

    def full(self, names: Iterable[str], places: int) -> frozenset[str]:
        """Return those of the given pools that already use as many places as they may ever use."""
        if not self._pools:
            return frozenset()
        reserved = sum(pool.reserved for pool in self._pools.values())
        return frozenset(
            name
            for name in names
            if not self._open(name, places - reserved + self.reserved(name) - self._running[name])
        )

    def reserved(self, name: str) -> int:
        return self._pools[name].reserved if name in self._pools else 0

    def _open(self, name: str, free: int) -> bool:
        most = self._pools[name].most if name in self._pools else None
        return free > 0 and (most is None or self._running[name] < most)


LEARNING_RATE = 0.1


class Pace:
    """Moving averages of a request's seconds in the engine and of its work."""

    def __init__(self) -> None:
        self.is_known = False
        self._seconds, self._work = 0.5, 1.0

    def ended(self, seconds: float, work: float) -> None:
        rate = LEARNING_RATE if self.is_known else 1.0
        self._seconds += rate * (seconds - self._seconds)
        self._work += rate * (work - self._work)
        self.is_known = True

    def seconds(self, work: float, at_once: int) -> float:
        """Return the seconds until `work` has started and one more request can start."""
        return self._seconds * (1 + work / self._work) / max(1, at_once)

    def seconds_of(self, work: float) -> float:
        """Return the expected seconds for an amount of work; 0 before anything was measured."""
        return self._seconds * work / self._work if self.is_known and self._work else 0.0

    def work(self, seconds: float) -> float:
        """Return the work that an engine does on one request in `seconds`; 0 before anything was measured."""
        return self._work * seconds / self._seconds if self.is_known and self._seconds else 0.0


SPAN = 30.0
"""Time constant of the rates in seconds; older work counts exponentially less."""


class ArrivalRates:
    """Work per second by class, including refused requests, which show the missing capacity."""

    def __init__(self, now: float) -> None:
        self._since = self._last = now
        self._sums = [0.0] * len(ServiceClass)

    def add(self, service_class: ServiceClass, work: float, now: float) -> None:
        self._fade(now)
        self._sums[service_class] += work

    def rate(self, service_class: ServiceClass, now: float) -> float:
        """Return the recent work per second: since the first request if that is recent, over at least a second."""
        self._fade(now)
        span = SPAN * -math.expm1(-max(1.0, now - self._since) / SPAN)
        return self._sums[service_class] / span

    def _fade(self, now: float) -> None:
        if now <= self._last:
            return
        factor = math.exp((self._last - now) / SPAN)
        self._sums = [total * factor for total in self._sums]
        self._last = now
