"""Shares by weight: what each team and key has had, and the lanes that order their requests."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple, Self

from registry.names import DEFAULT_TEAM
from tenants.caller import ServiceClass


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """`team` and `key` share by weight with those of their class; `work` is what it is charged when it starts."""

    team: str = DEFAULT_TEAM
    key: str = ""
    weight: float = 1.0
    """The team's weight."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    work: float = 1.0
    """Foreseen, in units of a prompt token's work."""
    due: float | None = None
    """Its deadline, in the queue's clock."""
    pool: str = ""
    """'': none of the recipe's."""


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
    """Accounts by their counters, the lowest first; of two that have the same, the older. Counters rise without a word:
    it is seen when one comes first.

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
        """In no order."""
        return iter(self._entries)

    def add(self, account: ShareAccount) -> None:
        account.orders.add(self)
        self.put(account)

    def put(self, account: ShareAccount) -> None:
        """Its counter is lower than before."""
        entries = self._entries
        entries[account] = account.counter
        heappush(self._heap, (account.counter, account.number, account))
        if len(self._heap) > 2 * len(entries) + _MAX_STALE:
            self._heap = [(counter, one.number, one) for one, counter in entries.items()]
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
        """One more request of this account waits. The newest weight counts."""
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
        """One request of it waits no more."""
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
        """The work of the others that is done before `own` work of this one is, if no further request comes.

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
    """The order among heads at one moment: counters rise as others start, so a rank is not kept."""

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
    """In its key: its deadline, or as if it had one."""


class Lane:
    """Adding and removing take O(log), besides moving a list's pointers; the first is known at once."""

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
