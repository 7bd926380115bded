"""Compute how many replicas a model needs, for autoscalers. A pure policy.

Work is in the units of `QueueRequest.work`. Processor load is ignored, because engines use all of it at any request
rate. `GET /v1/signal` and `roundhouse_wanted_replicas` report `desired_replicas`.

Rules, with the same numbers in the code:

1. A model without replicas needs `least` if requests wait for it, otherwise none.
2. Add one, or as many as bring the wait back to the goal, if a class would wait longer than its goal in `lead`
   seconds, because a replica that is requested now serves no sooner.
3. Add one if the KV cache is fuller than MOST_KV, because requests would then be delayed in the engine itself.
4. Remove one, but never go below `least`, if without it each class would meet its goal now and in DOWN_LEADS times the
   lead, and the KV cache would stay below MOST_KV.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_KV = 0.85
"""Highest desired use of the KV cache, from 0 to 1."""
DOWN_LEADS = 10.0
LEAST_GOAL = 0.1
"""Smallest goal in seconds, because no number of replicas brings the wait to zero."""


@dataclass(frozen=True, slots=True)
class ClassDemand:
    """The demand of one class, from the view of a new request in it."""

    goal: float
    """Seconds that a request may wait for its turn."""
    ahead: float
    """Work that starts before it."""
    arriving: float
    """Work per second that arrives in this class and above it."""

    def wait(self, rate: float, seconds: float) -> float:
        """Return the wait of a request that arrives in `seconds`, if `rate` work per second is done."""
        ahead = max(0.0, self.ahead + (self.arriving - rate) * seconds)
        if not ahead:
            return 0.0
        return ahead / rate if rate else math.inf


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """A model's work, and its replicas."""

    replicas: int
    """Replicas that serve or are starting."""
    least: int
    """Minimum number of replicas, from the recipe."""
    rate: float
    """Work per second of one replica; 0 if nothing was measured yet."""
    lead: float
    """Seconds until a new replica serves."""
    classes: Sequence[ClassDemand]
    kv_use: float = 0.0
    """Use of the fullest replica's KV cache, from 0 to 1."""


def desired_replicas(demand: ModelDemand) -> int:
    """Return the number of replicas that a model needs, by the rules above."""
    current, rate = demand.replicas, demand.rate
    if not current and not any(one.ahead for one in demand.classes):  # 1
        return 0
    needed = max(current, demand.least)
    if rate:
        needed = max([needed, *(_enough(one, demand) for one in demand.classes)])  # 2
    if current and demand.kv_use > MOST_KV:  # 3
        needed = max(needed, current + 1)
    if needed > current or current <= max(1, demand.least) or not rate:
        return needed
    fewer = current - 1  # 4
    if demand.kv_use * current / fewer > MOST_KV:
        return current
    seconds = (0.0, DOWN_LEADS * demand.lead)
    meets_goals = all(one.wait(fewer * rate, later) <= one.goal for one in demand.classes for later in seconds)
    return fewer if meets_goals else current


def _enough(one: ClassDemand, demand: ModelDemand) -> int:
    """Return the number of replicas that bring a class back to its goal; 0 if it meets it."""
    rate = demand.rate
    if one.wait(demand.replicas * rate, demand.lead) <= one.goal:
        return 0
    ahead = one.ahead + (one.arriving - demand.replicas * rate) * demand.lead
    return max(
        demand.replicas + 1, math.ceil(ahead / (rate * max(one.goal, LEAST_GOAL))), math.ceil(one.arriving / rate)
    )
