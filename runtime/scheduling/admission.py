"""Who may wait for a model: the bounds of its queue, its pools and the server, and deadlines that a wait would miss."""

from collections.abc import Callable
from dataclasses import dataclass

from registry.errors import QueueFull, Unreachable
from registry.recipes.definition import Recipe
from runtime.scheduling.fair.claim import QueueRequest
from runtime.scheduling.fair.pace import Pace
from runtime.scheduling.placement import Placement

MAX_RETRY_AFTER = 60.0
"""Seconds that are the most that a client is told to wait for others: whoever is before it may leave."""


@dataclass(slots=True)
class WaitingBound:
    """Shared by all queues: how many requests may wait in the whole server."""

    max_waiting: int
    waiting: int = 0


class QueueAdmission:
    """Of one queue. It predicts by what the policy holds and by the engine's pace so far."""

    def __init__(self, policy: Placement, bounds: WaitingBound, pace: Pace, clock: Callable[[], float]) -> None:
        self._policy, self._bounds, self._pace, self._clock = policy, bounds, pace, clock

    def check(self, recipe: Recipe, claim: QueueRequest, make_room: Callable[[QueueRequest], bool]) -> None:
        """Raises QueueFull or Unreachable. `make_room`: whether another request left the full queue for this one; asked
        last, so that nobody leaves it for one that is refused itself."""
        pool = recipe.pools.get(claim.pool)
        waits = not self._policy.starts_at_once(claim)
        if waits and pool is not None and (waiting := self._policy.waiting_in(claim.pool)) >= pool.max_waiting:
            raise QueueFull(
                f"{waiting} requests wait in the pool '{claim.pool}' of model '{recipe.id}' already. Try again later.",
                retry_after=self.predicted_wait(claim),
            )
        if self._bounds.waiting >= self._bounds.max_waiting:
            raise QueueFull(
                f"{self._bounds.waiting} requests wait in this server already. Try again later.",
                retry_after=self.predicted_wait(claim),
            )
        self._check_deadline(recipe, claim)
        if waits and self._policy.waiting >= recipe.queue.max_waiting and not make_room(claim):
            raise self.full(recipe, claim)

    def full(self, recipe: Recipe, claim: QueueRequest) -> QueueFull:
        return QueueFull(
            f"{self._policy.waiting} requests wait for model '{recipe.id}' already. Try again later.",
            retry_after=self.predicted_wait(claim),
        )

    def predicted_wait(self, claim: QueueRequest) -> float:
        """Seconds until a request that comes now would start, for Retry-After: from 1 to `MAX_RETRY_AFTER`."""
        return min(
            MAX_RETRY_AFTER, max(1.0, self._pace.seconds(self._policy.work_before(claim), self._policy.max_requests))
        )

    def _start_in(self, claim: QueueRequest, *, exactly: bool = False) -> float:
        """Seconds until a request that comes now would start; 0 where that is at once, or nothing was measured yet."""
        policy = self._policy
        if not self._pace.is_known or (not policy.waiting and policy.running < policy.max_requests):
            return 0.0
        return self._pace.seconds(policy.work_before(claim, exactly=exactly), policy.max_requests)

    def _check_deadline(self, recipe: Recipe, claim: QueueRequest) -> None:
        """Raises Unreachable. The cheap answer is the longest wait: only where that is too long it is worked out."""
        if claim.due is None:
            return
        remaining = claim.due - self._clock()
        if self._start_in(claim) > remaining and (wait := self._start_in(claim, exactly=True)) > remaining:
            raise unreachable(recipe.id, wait, remaining)


def unreachable(model: str, wait: float, remaining: float) -> Unreachable:
    return Unreachable(
        f"A request for '{model}' would wait about {wait:.1f} s now, and this one has {max(0.0, remaining):.1f} s. "
        "Send it again with more time, or later.",
        wait,
        retry_after=min(MAX_RETRY_AFTER, max(1.0, wait - remaining)),
    )
