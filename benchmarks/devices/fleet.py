"""Replicas with adapters on a virtual clock: the server's own policies, with engines of fixed times.

The scripted engine takes no adapters, and real engines on two cores disturb each other's times. So the choice of a
replica, the queues, the places and the accounts of the teams are the product's, and only time is simulated.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from registry.recipes.definition import Batching
from routing.replicas import ReplicaState, choose, keys_of
from runtime.scheduling.admission import QueueAdmission, WaitingBound
from runtime.scheduling.fair import Pace, QueueRequest
from runtime.scheduling.placement import Placement
from runtime.scheduling.queue import SWAP_SECONDS

STEP = 0.02
"""Seconds of an engine's step: a token for each request that runs."""
STAGE, PLACE = 0.15, 0.05
"""Seconds to read an adapter, and to write it into a place."""
ADAPTERS, PLACES, LOAD = 40, 24, 0.7
"""Adapters that requests use, places of each replica, and load as a share of what both can do."""


def digest_of(seed: int, number: int) -> str:
    return f"sha256:{random.Random(seed * 10_000 + number).getrandbits(256):064x}"


@dataclass
class FleetRequest:
    """A request and its times."""

    claim: QueueRequest
    digest: str
    seconds: float
    arrived: float
    hit: bool
    started: float = 0.0
    ended: Callable[[], None] = lambda: None


@dataclass
class Fleet:
    """Drives the policy as `ModelQueue` does."""

    replicas: int
    places: int
    at_once: int
    now: float = 0.0
    requests: dict[str, FleetRequest] = field(default_factory=dict)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        spare = Batching().spare_places
        self._policies = [Placement(self.places, 4 * self.places, self.at_once, spare=spare)]
        for _ in range(1, self.replicas):
            accounts = self._policies[0].line.accounts
            self._policies.append(Placement(self.places, 4 * self.places, self.at_once, spare=spare, accounts=accounts))
        for policy in self._policies:
            policy.others = tuple(other for other in self._policies if other is not policy)
        self._pace, bounds = Pace(), WaitingBound(10**9)
        self._admissions = [QueueAdmission(policy, bounds, self._pace, lambda: self.now) for policy in self._policies]

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, what))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()

    def ask(self, team: str, digest: str, tokens: int, ended: Callable[[], None] = lambda: None) -> None:
        states = [
            ReplicaState(number, admission.start_here(), policy.work, 0.0 if policy.has_place(digest) else SWAP_SECONDS)
            for number, (policy, admission) in enumerate(zip(self._policies, self._admissions, strict=True), 1)
        ]
        at, _ = choose(states, keys_of(None, "", digest), 0.0)
        self._count += 1
        name, claim = str(self._count), QueueRequest(team, work=4.0 * tokens)
        hit = self._policies[at].status(digest).tier == "device"
        self.requests[name] = FleetRequest(claim, digest, tokens * STEP, self.now, hit, ended=ended)
        self._policies[at].enqueue(name, digest, self.now, claim)
        self._pump(self._policies[at])

    def _pump(self, first: Placement) -> None:
        self._decide(first)
        while self.replicas > 1 and first.waiting_for_model:
            free = [policy for policy in self._policies if not policy.is_full]
            if not any(self._decide(policy) for policy in free):
                return

    def _decide(self, policy: Placement) -> bool:
        plan = policy.decide(self.now)
        for digest in plan.stage:
            self.after(STAGE, lambda digest=digest: self._report(policy, lambda: policy.staged(digest)))  # type: ignore[misc]
        for digest, _ in plan.place:
            self.after(
                PLACE,
                lambda digest=digest: self._report(policy, lambda: policy.placed(digest, self.now)),  # type: ignore[misc]
            )
        for name in plan.start:
            request = self.requests[name]
            request.started = self.now
            self.after(request.seconds, lambda name=name: self._end(policy, name))  # type: ignore[misc]
        if plan.wake_at is not None:
            self.after(max(1e-4, plan.wake_at - self.now), lambda: self._pump(policy))
        return bool(plan.start or plan.adopt)

    def _report(self, policy: Placement, news: Callable[[], None]) -> None:
        news()
        self._pump(policy)

    def _end(self, policy: Placement, name: str) -> None:
        request = self.requests[name]
        self._pace.ended(request.seconds, request.claim.work)
        policy.finish(name, self.now, request.claim.work)
        self._pump(policy)
        request.ended()


def warm_hits(seed: int, seconds: float) -> float:
    """Return the share of requests to two replicas that find their adapter in a place, after a warm-up."""
    at_once, tokens = 16, 40
    fleet, rng = Fleet(2, PLACES, at_once), random.Random(seed)
    digests = [digest_of(seed, number) for number in range(ADAPTERS)]
    rate = LOAD * 2 * at_once / (tokens * STEP)

    def arrive() -> None:
        fleet.ask("a", rng.choice(digests), max(1, round(rng.expovariate(1 / tokens))))
        fleet.after(rng.expovariate(rate), arrive)

    arrive()
    fleet.run(seconds)
    counted = [request for request in fleet.requests.values() if request.arrived > seconds / 5]
    return sum(request.hit for request in counted) / len(counted)


def quiet_wait(seed: int, seconds: float, *, flooded: bool) -> list[float]:
    """Return queue seconds of a team with twenty adapters and four clients, `flooded` by 200 clients of another."""
    fleet, rng = Fleet(2, PLACES, 16), random.Random(seed)
    own = [digest_of(seed, number) for number in range(20)]
    others = [digest_of(seed, number) for number in range(20, 28)]

    def client(team: str, digests: list[str]) -> None:
        fleet.ask(team, rng.choice(digests), rng.randint(16, 48), lambda: client(team, digests))

    for _ in range(4):
        client("quiet", own)
    if flooded:
        for _ in range(200):
            client("flood", others)
    fleet.run(seconds)
    return [
        request.started - request.arrived
        for request in fleet.requests.values()
        if request.claim.team == "quiet" and request.started and request.arrived > seconds / 5
    ]
