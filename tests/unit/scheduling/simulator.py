"""A simulated engine that carries out plans after given delays and fails at every illegal step."""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.scheduling.fair import DEFAULT_REQUEST, QueueRequest
from runtime.scheduling.placement import Placement, PlacementPlan


@dataclass
class Witness:
    """The engine's state, tracked independently of the policy. `obey` checks a plan and begins it."""

    policy: Placement
    places: int
    host: int
    max_requests: int
    staged: set[str] = field(default_factory=set)
    staging: set[str] = field(default_factory=set)
    placed: set[str] = field(default_factory=set)
    placing: dict[str, str | None] = field(default_factory=dict)
    admitted: set[str] = field(default_factory=set)
    """Adapters being placed, whose requests may already start."""
    failed: set[str] = field(default_factory=set)
    """Adapters that failed to be placed and still have started requests."""
    pinned: set[str] = field(default_factory=set)
    waiting: dict[str, str | None] = field(default_factory=dict)
    running: dict[str, str | None] = field(default_factory=dict)
    placements: int = 0

    def leases(self) -> Counter[str]:
        return Counter(digest for digest in self.running.values() if digest is not None)

    def obey(self, plan: PlacementPlan) -> None:
        leases = self.leases()
        in_place = {*self.placed, *self.placing, *(d for d in self.placing.values() if d), *self.failed}
        for digest in plan.drop:
            assert not leases[digest], "dropped under a lease"
            assert digest not in self.placing, "dropped while it was placed"
            assert digest not in self.placing.values(), "dropped while it gave up its place"
            self.staged.discard(digest)
            self.staging.discard(digest)
            self.placed.discard(digest)
        for digest, evict in plan.place:
            assert digest in self.staged, "placed before it was staged"
            assert digest not in in_place, "placed twice"
            if evict is not None:
                assert evict in self.placed, "took the place of one that has none"
                assert not leases[evict], "took a leased place"
                assert evict not in self.pinned, "took a pinned place"
                self.placed.remove(evict)
            self.placing[digest] = evict
            self.placements += 1
        assert len(self.placed) + len(self.placing) + len(self.failed) <= self.places, "more adapters than places"
        for digest in plan.stage:
            assert digest not in self.staged | self.staging, "staged twice"
            self.staging.add(digest)
        assert len(self.staged | self.staging) <= max(self.host, self.places + 1), "more than host memory holds"
        for request in plan.start:
            needed = self.waiting.pop(request)
            assert needed is None or needed in self.placed | self.admitted, "started without a place"
            self.running[request] = needed
        assert len(self.running) <= self.max_requests, "too many at once"

    def finish_staging(self, digest: str) -> None:
        self.staging.remove(digest)
        self.staged.add(digest)
        self.policy.staged(digest)

    def admit(self, digest: str, now: float) -> None:
        self.admitted.add(digest)
        self.policy.admit(digest, now)

    def fail_placing(self, digest: str) -> None:
        del self.placing[digest]
        self.admitted.discard(digest)
        if self.leases()[digest]:
            self.failed.add(digest)
        else:
            self.staged.discard(digest)

    def finish(self, request: str, now: float) -> str | None:
        """End a request, and return its adapter."""
        digest = self.running.pop(request)
        if digest in self.failed and not self.leases()[digest]:
            self.failed.remove(digest)
            self.staged.discard(digest)
        self.policy.finish(request, now)
        return digest

    def finish_placing(self, digest: str, now: float) -> None:
        del self.placing[digest]
        self.admitted.discard(digest)
        self.placed.add(digest)
        self.policy.placed(digest, now)


@dataclass(frozen=True)
class Arrival:
    at: float
    digest: str | None
    seconds: float
    claim: QueueRequest = DEFAULT_REQUEST


@dataclass
class Served:
    arrival: Arrival
    started: float
    ahead: int
    """The number of requests that were waiting when it arrived."""
    adapters_ahead: int

    @property
    def wait(self) -> float:
        return self.started - self.arrival.at


def simulate(
    witness: Witness,
    arrivals: list[Arrival],
    *,
    stage: float,
    place: float,
    early: bool = False,
    until: float = 1e9,
    after: Callable[[str, str | None, float], Arrival | None] = lambda request, digest, now: None,
) -> list[Served]:
    """Run a trace in virtual time. `after` may return the next request of a finished request's client.

    With `early`, requests start as soon as the command to place their adapter is sent, and run once it is placed.
    """
    policy, counter = witness.policy, itertools.count()
    events: list[tuple[float, int, str, object]] = []

    def push(at: float, kind: str, what: object) -> None:
        heapq.heappush(events, (at, next(counter), kind, what))

    for arrival in arrivals:
        push(arrival.at, "arrive", arrival)
    upcoming: dict[str, Served] = {}
    served: list[Served] = []
    alarms: set[float] = set()
    placed_at: dict[str, float] = {}
    while events and events[0][0] <= until:
        now, _, kind, what = heapq.heappop(events)
        if kind == "arrive":
            assert isinstance(what, Arrival)
            request = str(next(counter))
            digests = {*filter(None, witness.waiting.values())} | ({what.digest} if what.digest else set())
            upcoming[request] = Served(what, -1, len(witness.waiting), len(digests))
            witness.waiting[request] = what.digest
            policy.enqueue(request, what.digest, now, what.claim)
        elif kind == "staged":
            witness.finish_staging(str(what))
        elif kind == "placed":
            witness.finish_placing(str(what), now)
        elif kind == "finish":
            digest = witness.finish(str(what), now)
            following = after(str(what), digest, now)
            if following is not None:
                push(following.at, "arrive", following)
        elif kind == "sent":
            witness.admit(str(what), now)
        plan = policy.decide(now)
        witness.obey(plan)
        for digest in plan.stage:
            push(now + stage, "staged", digest)
        for digest, _evict in plan.place:
            placed_at[digest] = now + place
            push(now + place, "placed", digest)
            if early:
                push(now, "sent", digest)
        for request in plan.start:
            digest = witness.running[request]
            upcoming[request].started = max(now, placed_at.get(digest, now)) if digest else now
            served.append(upcoming.pop(request))
            push(served[-1].started + served[-1].arrival.seconds, "finish", request)
        if plan.wake_at is not None:
            assert plan.wake_at > now
            if plan.wake_at not in alarms:
                alarms.add(plan.wake_at)
                push(plan.wake_at, "wake", None)
    if until == 1e9:
        assert not upcoming, "requests were not served"
    return served
