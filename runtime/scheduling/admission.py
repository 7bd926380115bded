"""A request's queue entry and lease, and the bounds on waiting."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from models.messages import AdapterRef
from registry.errors import QueueFull, RoundhouseError, Unreachable
from registry.recipes.definition import Recipe
from registry.records import Probe
from runtime.scheduling.fair import Pace, QueueRequest
from runtime.scheduling.placement import Placement
from runtime.slots.link import SlotLink
from tenants.caller import ServiceClass

REVOKED = "line_revoked"
"""Error code for a batch line that is ended because a request of a higher class takes its turn."""


@dataclass(slots=True)
class QueueEntry:
    """A request from its arrival to its end."""

    id: str
    adapter: AdapterRef | None
    probe: Probe | None
    """The probe of the requested adapter version."""
    arrived: float
    turn: asyncio.Future[SlotLink]
    claim: QueueRequest
    aborted: asyncio.Future[RoundhouseError]
    """Done with the error that ends its call, if something ends it from outside."""
    started: float | None = None
    work: float | None = None
    """Work done for it; None until known."""
    missed: bool = False
    """Whether its adapter was in no place when the request arrived."""
    swap_seconds: float = 0.0
    """Part of `queued_seconds` spent swapping in its adapter."""
    placing_seconds: float = 0.0
    """Time it waited in the engine, after its start, until its adapter was in a place."""
    replica: int = 1
    """Number of the replica where it waits or runs."""

    @property
    def queued_seconds(self) -> float:
        """Time it waited for its turn and for its adapter's place."""
        return (self.started or 0.0) - self.arrived + self.placing_seconds

    def abort(self, error: RoundhouseError) -> None:
        """End its call with this error, unless it is already ending."""
        if not self.aborted.done():
            self.aborted.set_result(error)


class SlotLease:
    """A hold on a resident model and on an adapter's place, as an async context manager.

    Args:
        give_back: ends the hold. Does nothing if the ticket has already ended.
        charge: reports the work done so far for a ticket.
    """

    def __init__(
        self,
        ticket: QueueEntry,
        link: SlotLink,
        give_back: Callable[[QueueEntry], None],
        charge: Callable[[QueueEntry, float], None],
    ) -> None:
        self.ticket, self.link, self._give_back, self._charge = ticket, link, give_back, charge

    def progress(self, work: float) -> None:
        """Report the work done so far."""
        self._charge(self.ticket, work)

    def set_work(self, work: float) -> None:
        """Set the total work done. Call it before `release`."""
        self.ticket.work = work

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the place back; safe to call twice."""
        self._give_back(self.ticket)


MAX_RETRY_AFTER = 60.0
"""Upper bound on Retry-After, in seconds, because requests ahead may be cancelled."""


@dataclass(slots=True)
class WaitingBound:
    """The number of requests that may wait in the whole server; shared by all queues."""

    max_waiting: int
    waiting: int = 0


class QueueAdmission:
    def __init__(self, policy: Placement, bounds: WaitingBound, pace: Pace, clock: Callable[[], float]) -> None:
        self._policy, self._bounds, self._pace, self._clock = policy, bounds, pace, clock

    def check(self, recipe: Recipe, claim: QueueRequest, make_room: Callable[[QueueRequest], bool]) -> None:
        """Raise QueueFull or Unreachable if the request may not wait.

        `make_room` removes another request from a full queue to make room for this one. It is called last, so that
        nothing is removed for a request that is then refused.
        """
        pool = recipe.pools.get(claim.pool)
        waits = not self._policy.starts_at_once(claim)
        if waits and pool is not None and (waiting := self._policy.waiting_in(claim.pool)) >= pool.max_waiting:
            raise QueueFull(
                f"{waiting} requests already wait in the pool '{claim.pool}' of model '{recipe.id}'. Try again later.",
                retry_after=self.predicted_wait(claim),
            )
        if self._bounds.waiting >= self._bounds.max_waiting:
            raise QueueFull(
                f"{self._bounds.waiting} requests already wait in this server. Try again later.",
                retry_after=self.predicted_wait(claim),
            )
        self._check_deadline(recipe, claim)
        if waits and self._policy.waiting_for_model >= recipe.queue.max_waiting and not make_room(claim):
            raise self.full(recipe, claim)

    def full(self, recipe: Recipe, claim: QueueRequest) -> QueueFull:
        return QueueFull(
            f"{self._policy.waiting_for_model} requests already wait for model '{recipe.id}'. Try again later.",
            retry_after=self.predicted_wait(claim),
        )

    def predicted_wait(self, claim: QueueRequest) -> float:
        """Return the seconds until a new request would start, clamped to 1 to MAX_RETRY_AFTER."""
        return min(
            MAX_RETRY_AFTER, max(1.0, self._pace.seconds(self._policy.line.work_before(claim), self._policy.turns))
        )

    def start_in(self, claim: QueueRequest, *, exactly: bool = False) -> float:
        """Return the seconds until a new request would start; 0 if at once or if nothing was measured yet."""
        policy = self._policy
        if not self._pace.is_known or (not policy.waiting_for_model and policy.running < policy.max_requests):
            return 0.0
        return self._pace.seconds(policy.line.work_before(claim, exactly=exactly), policy.turns)

    def start_of_class(self, service_class: ServiceClass) -> float:
        """Return the seconds until a request behind all others of its class would start; 0 as in `start_in`."""
        policy = self._policy
        if not self._pace.is_known or (not policy.waiting_for_model and policy.running < policy.max_requests):
            return 0.0
        return self._pace.seconds(policy.line.work_of_class(service_class), policy.turns)

    def start_here(self) -> float:
        """Return the seconds until a request at the end of this replica's line would start; 0 as in `start_in`."""
        policy = self._policy
        if not self._pace.is_known or (not policy.waiting and not policy.is_full):
            return 0.0
        return self._pace.seconds(policy.line.work, policy.max_requests)

    def _check_deadline(self, recipe: Recipe, claim: QueueRequest) -> None:
        """Raise Unreachable if the request cannot start before its deadline.

        Estimates the longest wait first, which is cheap, and the exact one only if that is too long.
        """
        if claim.due is None:
            return
        remaining = claim.due - self._clock()
        if self.start_in(claim) > remaining and (wait := self.start_in(claim, exactly=True)) > remaining:
            raise unreachable(recipe.id, wait, remaining)


def unreachable(model: str, wait: float, remaining: float) -> Unreachable:
    return Unreachable(
        f"A request for '{model}' would wait about {wait:.1f} s now, but this one has only {max(0.0, remaining):.1f} s "
        "left. Send it again with more time, or later.",
        wait,
        retry_after=min(MAX_RETRY_AFTER, max(1.0, wait - remaining)),
    )
