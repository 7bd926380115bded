"""What waits for one adapter, in one class and pool: by team, key, deadline."""

from bisect import bisect_left, insort
from collections.abc import Callable

from runtime.scheduling.fair.accounts import AccountOrder, ShareAccount
from runtime.scheduling.fair.claim import QueueRequest
from runtime.scheduling.rank import Rank, WaitingRequest


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
        """Of the teams whose claims fit. O(teams)."""
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
    """Of a lane's first request now. position: of its class."""
    team, key = request.ties.team, request.ties.key
    return Rank(position, team.counter, team.number, key.counter, key.number, request.due, request.arrival)
