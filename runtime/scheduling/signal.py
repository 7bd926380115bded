"""Compute how many replicas a model needs, for autoscalers. A pure policy.

Work is in the units of `QueueRequest.work`; the processor's load counts for nothing, since engines use all of it at any
rate. `GET /v1/signal` and `roundhouse_wanted_replicas` come from `desired_replicas`.

The same numbers stand at the code:

1. A model without replicas needs `least` once requests wait for it, else none.
2. One more, or as many as bring the wait back to the goal, where a class would wait longer than its goal once `lead`
   seconds have passed: a replica that is ordered now is there no sooner.
3. One more where the KV cache is fuller than MOST_KV: requests would be put off in the engine itself.
4. One fewer, but never fewer than `least`, where without it each class met its goal now and in DOWN_LEADS times the
   lead, and the KV cache stayed below MOST_KV.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tenants.caller import ServiceClass

MOST_KV = 0.85
"""Part of the KV cache in use."""
DOWN_LEADS = 10.0
LEAST_GOAL = 0.1
"""Seconds: no number of replicas answers in none."""


@dataclass(frozen=True, slots=True)
class ClassDemand:
    """The requests of one class, as a new one of it sees them."""

    goal: float
    """Seconds that one may wait for its turn."""
    ahead: float
    """Work that begins before it."""
    arriving: float
    """Work per second that comes in this class and above it."""

    def wait(self, rate: float, seconds: float) -> float:
        """Seconds that a request would wait that comes in `seconds`, at so much work per second."""
        ahead = max(0.0, self.ahead + (self.arriving - rate) * seconds)
        if not ahead:
            return 0.0
        return ahead / rate if rate else math.inf


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """A model's work, and its replicas."""

    replicas: int
    """Replicas that serve it or are on their way."""
    least: int
    """The least number of replicas, from the recipe."""
    rate: float
    """Work per second of one replica; 0: nothing was measured yet."""
    lead: float
    """Seconds until another replica serves."""
    classes: Sequence[ClassDemand]
    kv_use: float = 0.0
    """Use of the fullest replica's KV cache, from 0 to 1."""


def desired_replicas(demand: ModelDemand) -> int:
    """Compute the replicas that a model needs; see the rules above."""
    there, rate = demand.replicas, demand.rate
    if not there and not any(one.ahead for one in demand.classes):  # 1
        return 0
    needed = max(there, demand.least)
    if rate:
        needed = max([needed, *(_enough(one, demand) for one in demand.classes)])  # 2
    if there and demand.kv_use > MOST_KV:  # 3
        needed = max(needed, there + 1)
    if needed > there or there <= max(1, demand.least) or not rate:
        return needed
    fewer = there - 1  # 4
    if demand.kv_use * there / fewer > MOST_KV:
        return there
    seconds = (0.0, DOWN_LEADS * demand.lead)
    holds = all(one.wait(fewer * rate, later) <= one.goal for one in demand.classes for later in seconds)
    return fewer if holds else there


def _enough(one: ClassDemand, demand: ModelDemand) -> int:
    """The replicas that bring a class back to its goal; 0: it meets it."""
    rate = demand.rate
    if one.wait(demand.replicas * rate, demand.lead) <= one.goal:
        return 0
    then = one.ahead + (one.arriving - demand.replicas * rate) * demand.lead
    return max(
        demand.replicas + 1, math.ceil(then / (rate * max(one.goal, LEAST_GOAL))), math.ceil(one.arriving / rate)
    )


SPAN = 30.0
"""Seconds over which the rates are means: what came before counts less and less."""


class ArrivalRates:
    """Work per second by class, refused requests included: they are what is lacking."""

    def __init__(self, now: float) -> None:
        self._since = self._last = now
        self._sums = [0.0] * len(ServiceClass)

    def add(self, service_class: ServiceClass, work: float, now: float) -> None:
        self._fade(now)
        self._sums[service_class] += work

    def rate(self, service_class: ServiceClass, now: float) -> float:
        """Work per second lately: since the first request if that is recent, over a second at least."""
        self._fade(now)
        span = SPAN * -math.expm1(-max(1.0, now - self._since) / SPAN)
        return self._sums[service_class] / span

    def _fade(self, now: float) -> None:
        if now <= self._last:
            return
        part = math.exp((self._last - now) / SPAN)
        self._sums = [one * part for one in self._sums]
        self._last = now
