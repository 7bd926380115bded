"""The order of requests: floors of classes, weights of teams and keys, deadlines.

Pure: no clock, no I/O, no adapters. Work is in the units of `QueueRequest.work`.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple, Self

from registry.names import DEFAULT_TEAM
from tenants.caller import ServiceClass


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """The facts that order a request.

    `team` and `key` share by weight within their class; `work` is charged at the start.
    """

    team: str = DEFAULT_TEAM
    key: str = ""
    weight: float = 1.0
    """The team's weight."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    work: float = 1.0
    """Foreseen, in units of a prompt token's work."""
    due: float | None = None
    """Deadline by the queue's clock."""
    pool: str = ""
    """'': none of the recipe's."""
    is_line: bool = False
    """A line of a batch."""

    @property
    def is_revocable(self) -> bool:
        """A line of the class batch: it runs in what others leave, gives its turn up, and earns no floor."""
        return self.is_line and self.service_class is ServiceClass.BATCH

    @property
    def is_from_people(self) -> bool:
        """Whether it is above the class batch, and no line."""
        return not self.is_line and self.service_class is not ServiceClass.BATCH


DEFAULT_REQUEST = QueueRequest()


class ShareAccount:
    """A team in a class, or a key of it."""

    __slots__ = ("counter", "keys", "number", "orders", "queued", "waiting", "weight")

    def __init__(self, weight: float, counter: float, number: int) -> None:
        self.weight, self.counter, self.number = weight, counter, number
        self.waiting = 0
        self.queued = 0.0
        """The work that waits."""
        self.keys = ShareGroup()
        """The keys of a team. A key's own account has none."""
        self.orders: set[AccountOrder] = set()

    def charge(self, work: float) -> None:
        """Work that it had; negative: that it was charged, and did not have."""
        self.counter += work / self.weight
        if work < 0:
            for order in self.orders:
                order.put(self)


_MAX_STALE = 64
"""Entries of an order that may count no more, beside as many as there are accounts: `first` meets them late, or never
while all of them wait."""


class AccountOrder:
    """Accounts by their counters, the lowest first, then the oldest.

    Adding and leaving take O(log accounts), `first` as much for each that has risen since.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ShareAccount]] = []
        self._entries: dict[ShareAccount, float] = {}
        """The counter of each account's one entry that counts."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, account: object) -> bool:
        return account in self._entries

    def __iter__(self) -> Iterator[ShareAccount]:
        """All waiting requests, in no order."""
        return iter(self._entries)

    def add(self, account: ShareAccount) -> None:
        account.orders.add(self)
        self.put(account)

    def put(self, account: ShareAccount) -> None:
        """Put an account back once its counter has fallen."""
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
        """The lowest; there must be one."""
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
        """Note that one more request of this account waits. The newest weight counts."""
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
        """Note that one request of it waits no more."""
        account.waiting -= 1
        account.queued -= work
        if not account.waiting:
            account.queued = 0.0  # nothing is left of sums of fractions
            assert self.waiting is not None
            self.waiting.discard(account)
            self._last = account

    def queued(self, name: str) -> float:
        """The work of one that waits."""
        account = self._accounts.get(name)
        return account.queued if account is not None else 0.0

    def find(self, name: str) -> ShareAccount | None:
        return self._accounts.get(name)

    def ahead(self, name: str, weight: float, own: float) -> float:
        """Work of others done before `own` work of this one, if nothing else comes.

        O(those that wait): there may be thousands of keys without waiting requests.
        """
        mine = self._accounts.get(name)
        others = (account for account in self.waiting or () if account is not mine)
        return sum(min(account.queued, own * account.weight / weight) for account in others)

    def _level(self) -> float:
        if self.waiting:
            return self.waiting.first().counter
        return self._last.counter if self._last is not None else 0.0


class ShareAccounts:
    """The two accounts that a request is charged to."""

    __slots__ = ("key", "team")

    def __init__(self, team: ShareAccount, key: ShareAccount) -> None:
        self.team, self.key = team, key

    def charge(self, work: float) -> Self:
        self.team.charge(work)
        self.key.charge(work)
        return self


class Rank(NamedTuple):
    """The order among heads at one moment."""

    position: int
    """Position of its class: one that is owed its floor comes before those above it."""
    team: float
    """The team's counter, and its number."""
    team_number: int
    key: float
    key_number: int
    due: float
    arrival: int
    """Counts the requests of one queue."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRequest:
    """`digest` None: the base itself. `since`: clock seconds."""

    id: str
    digest: str | None
    since: float
    arrival: int
    claim: QueueRequest
    ties: ShareAccounts
    due: float
    """The deadline in its key, or a substitute for one."""


class Lane:
    """Requests in order. Adding and removing take O(log n) and a list's move."""

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
        """The first request of the teams that fit. O(teams)."""
        fitting = [team for team in self._teams if fits(self._first_of(team).claim)]
        return self._first_of(min(fitting, key=lambda team: (team.counter, team.number))) if fitting else None

    def _first_of(self, team: ShareAccount) -> WaitingRequest:
        return self._requests[self._keys[team].first()][0][2]

    def __bool__(self) -> bool:
        return bool(self._requests)

    def requests(self) -> list[WaitingRequest]:
        """All, in no order."""
        return [entry[2] for queue in self._requests.values() for entry in queue]


def rank(request: WaitingRequest, position: int) -> Rank:
    """Rank of a lane's first request now. position: that of its class."""
    team, key = request.ties.team, request.ties.key
    return Rank(position, team.counter, team.number, key.counter, key.number, request.due, request.arrival)


class Floors:
    """Classes that wait earn `share` of all work that starts.

    While a class has earned some, it goes before those above it, and pays for what it starts. It may start more than it
    earned once, and then earns that first: so it gets its share to within one request, and one that comes rarely does
    not get ahead of others each time.
    """

    def __init__(self, share: float) -> None:
        """Raises ValueError for a share that leaves nothing for the highest class."""
        if not 0 <= share < 0.5:
            raise ValueError("a floor is at least 0 and less than a half")
        self.share = share
        self._earned = dict.fromkeys(ServiceClass, 0.0)

    def owed(self, service_class: ServiceClass) -> bool:
        return self._earned[service_class] > 0

    def order(self, waiting: Collection[ServiceClass]) -> list[ServiceClass]:
        """The classes that wait, by who goes first."""
        return sorted(waiting, key=lambda one: one if self._earned[one] <= 0 else one - len(self._earned))

    def done(self, service_class: ServiceClass, work: float, waiting: Collection[ServiceClass], *, pays: bool) -> None:
        """Charge work that began, or turned out to be more.

        `pays`: it went before others by its floor.
        """
        if pays:
            self._earned[service_class] -= work
        for one in waiting:
            if one is not ServiceClass.CRITICAL:
                self._earned[one] += self.share * work

    def clear_credit(self, service_class: ServiceClass) -> None:
        """Clear the credit of a class in which nothing waits any more; its debt stays."""
        self._earned[service_class] = min(0.0, self._earned[service_class])


@dataclass(frozen=True, slots=True)
class Pool:
    """`reserved` places stay free for it; it never has more than `most`."""

    reserved: int = 0
    most: int | None = None


class Pools:
    """The pools that may start a request now.

    '' is the pool of requests that are in none: nothing is reserved for it.
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
        """The given pools that may start nothing while there are `places` in all."""
        if not self._pools:
            return frozenset() if self._running.total() < places else frozenset(names)
        free = places - self._running.total()
        unused_reservations = {name: max(0, pool.reserved - self._running[name]) for name, pool in self._pools.items()}
        total = sum(unused_reservations.values())
        return frozenset(
            name for name in names if not self._open(name, free - total + unused_reservations.get(name, 0))
        )

    def full(self, names: Iterable[str], places: int) -> frozenset[str]:
        """The given pools that have as many places as they may ever have."""
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
    """Running means of a request's seconds in the engine and of its work."""

    def __init__(self) -> None:
        self.is_known = False
        self._seconds, self._work = 0.5, 1.0

    def ended(self, seconds: float, work: float) -> None:
        part = LEARNING_RATE if self.is_known else 1.0
        self._seconds += part * (seconds - self._seconds)
        self._work += part * (work - self._work)
        self.is_known = True

    def seconds(self, work: float, at_once: int) -> float:
        """Seconds until that much waiting work has begun and one more request can."""
        return self._seconds * (1 + work / self._work) / max(1, at_once)

    def seconds_of(self, work: float) -> float:
        """Expected seconds for an amount of work; 0 before anything was measured."""
        return self._seconds * work / self._work if self.is_known and self._work else 0.0

    def work(self, seconds: float) -> float:
        """The work that an engine with one request does in so long; 0 before anything was measured."""
        return self._work * seconds / self._seconds if self.is_known and self._seconds else 0.0
