"""Closed loops of teams over only the policy. The engine has a number of places and runs in steps without a clock."""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.scheduling.fair import QueueRequest
from runtime.scheduling.placement import Placement
from tenants.caller import ServiceClass


@dataclass
class Loop:
    """Runs requests of teams. `real` returns the actual work of a request, which is reported at its end."""

    policy: Placement
    real: Callable[[QueueRequest], float] = lambda claim: claim.work
    served: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The estimated work of started requests by team."""
    had: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The actual work of finished requests by team."""
    classes: defaultdict[ServiceClass, float] = field(default_factory=lambda: defaultdict(float))
    order: list[str] = field(default_factory=list)
    """The teams in the order in which their requests started."""
    claims: dict[str, QueueRequest] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)

    def ask(self, claim: QueueRequest, digest: str | None = None) -> str:
        name = str(len(self.claims))
        self.claims[name] = claim
        self.policy.enqueue(name, digest, 0.0, claim)
        return name

    def start(self) -> list[str]:
        started = list(self.policy.decide(0.0).start)
        for name in started:
            claim = self.claims[name]
            self.served[claim.team] += claim.work
            self.classes[claim.service_class] += claim.work
            self.order.append(claim.team)
        self.running += started
        return started

    def end(self, position: int = 0) -> QueueRequest:
        name = self.running.pop(position)
        claim = self.claims[name]
        work = self.real(claim)
        self.had[claim.team] += work
        self.policy.finish(name, 0.0, work)
        return claim


def backlogged(loop: Loop, claims: list[QueueRequest], steps: int, deep: int, seed: int = 1) -> None:
    """Run a client per claim that always has `deep` requests waiting. Requests end in random order."""
    random_ = random.Random(seed)
    for claim in claims:
        for _ in range(deep):
            loop.ask(claim)
    for _ in range(steps):
        for name in loop.start():
            loop.ask(loop.claims[name])
        loop.end(random_.randrange(len(loop.running)))


def jain(shares: list[float]) -> float:
    """Return Jain's index, which is 1 if all shares are equal."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
