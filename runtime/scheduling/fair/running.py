"""What runs, and what its teams and keys were charged for it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from runtime.scheduling.fair.claim import QueueRequest
from runtime.scheduling.fair.pools import Pool, Pools
from runtime.scheduling.rank import WaitingRequest
from runtime.scheduling.waiting import WaitingRequests
from tenants.classes import ServiceClass

_NONE = Counter[ServiceClass]()


@dataclass(slots=True)
class _Run:
    request: WaitingRequest
    charged: float
    pays: bool
    """It went before others by its class's floor."""


class RunningRequests:
    """| event    | the accounts of its team and key, and its class's floor      |
    |----------|--------------------------------------------------------------|
    | start    | are charged what was foreseen                                |
    | progress | what it has had beyond that, at once                         |
    | end      | the rest, or they get back what it was charged and had not   |
    | clear    | get everything back: the engine is gone, and nobody had it   |
    """

    def __init__(self, waiting: WaitingRequests, pools: Mapping[str, Pool]) -> None:
        self._waiting, self._runs = waiting, dict[str, _Run]()
        self._of_team: dict[str, tuple[float, Counter[ServiceClass]]] = {}
        """Of each that runs any: its weight, and how many by class."""
        self.pools = Pools(pools)

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._runs

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def closed(self, places: int) -> frozenset[str]:
        """The pools with requests that wait of which none may start now."""
        return self.pools.closed(self._waiting.pools, places)

    def full(self, places: int) -> frozenset[str]:
        """The pools with requests that wait that have as many places as they ever get: no adapter comes for them."""
        return self.pools.full(self._waiting.pools, places)

    def with_less(self, places: int) -> Callable[[QueueRequest], bool]:
        """Whether a claim's team runs none, in its class and above, or would not run more than its part of the places
        by weight. Whole places only: what parts round up to would go to small teams for ever, whatever they had."""
        whole = sum(weight for weight, _ in self._of_team.values())

        def has_less(claim: QueueRequest) -> bool:
            _, mine = self._of_team.get(claim.team, (0.0, _NONE))
            among = whole if mine else whole + claim.weight
            runs = sum(count for one, count in mine.items() if one <= claim.service_class)
            return not runs or (runs + 1) * among <= places * claim.weight

        return has_less

    def start(self, request: WaitingRequest) -> None:
        """It waits no more."""
        claim = request.claim
        run = _Run(request, 0.0, self._waiting.floors.owed(claim.service_class))
        self._waiting.remove(request.id)
        self._runs[request.id] = run
        self.pools.start(claim.pool)
        _, mine = self._of_team.get(claim.team, (0.0, Counter[ServiceClass]()))
        mine[claim.service_class] += 1
        self._of_team[claim.team] = claim.weight, mine
        self._charge(run, claim.work)

    def progress(self, request_id: str, work: float) -> None:
        """It has had so much work until now. Unknown ids are ignored."""
        run = self._runs.get(request_id)
        if run is not None and work > run.charged:
            self._charge(run, work - run.charged)

    def end(self, request_id: str, work: float | None) -> WaitingRequest | None:
        """It has had so much work; None: as foreseen. Gives nothing for an unknown id."""
        run = self._runs.pop(request_id, None)
        if run is None:
            return None
        claim = run.request.claim
        self.pools.end(claim.pool)
        _, mine = self._of_team[claim.team]
        mine[claim.service_class] -= 1
        if not mine.total():
            del self._of_team[claim.team]
        if work is not None:
            self._charge(run, work - run.charged)
        return run.request

    def counts(self) -> dict[ServiceClass, int]:
        """How many run, by class."""
        result = dict.fromkeys(ServiceClass, 0)
        for run in self._runs.values():
            result[run.request.claim.service_class] += 1
        return result

    def clear(self) -> None:
        for run in self._runs.values():
            self._charge(run, -run.charged)
        self._runs.clear()
        self._of_team.clear()
        self.pools.clear()

    def _charge(self, run: _Run, work: float) -> None:
        run.charged += work
        run.request.ties.charge(work)
        service_class = run.request.claim.service_class
        self._waiting.floors.done(service_class, work, self._waiting.classes, pays=run.pays)
