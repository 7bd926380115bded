"""One provider: connections, a breaker per model, retries, and running requests."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from registry.base.lazy import import_in_thread
from registry.errors import (
    BadRequest,
    DeadlineExceeded,
    ProviderFailed,
    ProviderOverloaded,
    ProviderWithoutBatches,
    QueueFull,
)
from registry.recipes.provider import Provider, ProviderModel
from routing.providers import breaker
from routing.providers.breaker import Breaker, CallOutcome, Permit
from routing.providers.connection import Connection
from routing.providers.usage_bounds import EXCESS_USAGE

LONGEST_WAIT = 20.0
"""Longest Retry-After in seconds that is waited for. A longer one is passed to the client."""
FIRST_SECONDS, MAX_SECONDS = 0.25, 8.0
"""Seconds before the first retry, doubled for each further one, and the longest."""
SHARE, SAVED = 0.1, 10.0
"""Retries earned per request, and the most that can be saved up."""


class RetryBudget:
    """Limits retries to a tenth of the traffic, so that they do not worsen an outage."""

    def __init__(self) -> None:
        self._tokens = 1.0

    def record_request(self) -> None:
        """Count the first attempt of a request."""
        self._tokens = min(SAVED, self._tokens + SHARE)

    def take(self) -> bool:
        """Take one retry. Returns whether there was one."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def retry_delay(attempt: int, retry_after: float | None, seconds_left: float | None, chance: float) -> float | None:
    """Return the seconds until the next attempt, or None if it makes no sense.

    Args:
        attempt: the failed attempt, from 1.
        seconds_left: of the whole request. None without a deadline.
        chance: 0 to 1. Half of the back-off is jitter; a Retry-After is a lower bound.
    """
    back_off = min(MAX_SECONDS, FIRST_SECONDS * 2.0 ** (attempt - 1)) * (0.5 + chance / 2)
    if retry_after is not None:
        if retry_after > LONGEST_WAIT:
            return None
        back_off = max(back_off, retry_after)
    return None if seconds_left is not None and back_off >= seconds_left else back_off


OnOutcome = Callable[[str, str, str], None]
"""Called with provider, model and outcome of an attempt, for metrics."""


class Upstream:
    """clock: returns monotonic seconds. chance: returns 0 to 1."""

    def __init__(
        self,
        provider: Provider,
        on_outcome: OnOutcome = lambda provider, model, outcome: None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.provider = provider
        self.breakers: dict[str, Breaker] = {model.name: Breaker() for model in provider.models}
        self.running = self.lines = 0
        self._on_outcome, self._clock, self._chance = on_outcome, clock, chance
        self._budget = RetryBudget()
        self._connection: Connection | None = None
        self._idle = asyncio.Event()

    async def connect(self) -> Connection:
        """Return the connection, created with the first request, because its library takes long to import."""
        await import_in_thread("registry.base.session")
        if self._connection is None:
            self._connection = Connection(self.provider)
        return self._connection

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def close_when_idle(self) -> None:
        """Close when no request is running any more, or the server ends."""
        try:
            while self.running:
                self._idle.clear()
                await self._idle.wait()
        finally:
            await self.close()

    def enter(self, first: bool, *, is_line: bool = False) -> None:
        """Count one more running attempt. first: it is its request's first one here. is_line: it is a batch line.

        Raises QueueFull, and ProviderWithoutBatches for lines.
        """
        if is_line and not self.provider.batches:
            raise ProviderWithoutBatches(
                f"Provider '{self.provider.id}' takes no lines of batches: its document says `batches: false`. "
                "Name another model."
            )
        if is_line and self.lines >= self.provider.batch_connections:
            raise QueueFull(
                f"Provider '{self.provider.id}' has {self.lines} lines of batches under way, as many as its "
                "`batch_connections`.",
                code="provider_busy",
                retry_after=1,
            )
        if self.running >= self.provider.connections:
            raise QueueFull(
                f"Provider '{self.provider.id}' has {self.running} requests under way, as many as its recipe allows.",
                code="provider_busy",
                retry_after=1,
            )
        self.running += 1
        self.lines += is_line
        if first:
            self._budget.record_request()

    def leave(self, *, is_line: bool = False) -> None:
        self.running -= 1
        self.lines -= is_line
        self._idle.set()

    def again(self, error: Exception, attempt: int, seconds_left: float | None) -> float | None:
        """Return the seconds until the request may be retried, or None for never. attempt: the failed one."""
        if not (isinstance(error, ProviderFailed) and error.again) or attempt > self.provider.retries:
            return None
        seconds = retry_delay(attempt, error.retry_after, seconds_left, self._chance())
        return seconds if seconds is not None and self._budget.take() else None

    # --- the breaker ------------------------------------------------------------------------------------------------
    def admit(self, model: ProviderModel) -> Permit:
        """Ask the model's breaker for a permit. Raises ProviderOverloaded if it is open."""
        state, verdict = breaker.admit(self.breakers[model.name], self._clock())
        self.breakers[model.name] = state
        if isinstance(verdict, Permit):
            return verdict
        raise ProviderOverloaded(
            f"Provider '{self.provider.id}' failed too often with '{model.name}' and is paused. Try later.",
            code="provider_open",
            retry_after=max(1.0, verdict.seconds),
            counts=False,
        )

    def begun(self, model: ProviderModel, permit: Permit) -> None:
        """Record an attempt's first words."""
        self.breakers[model.name] = breaker.begun(self.breakers[model.name], permit)

    def ended(
        self,
        model: ProviderModel,
        permit: Permit,
        error: BaseException | None,
        begun: bool,
        quiet: float = 0.0,
        *,
        excess: bool = False,
    ) -> None:
        """Record the end of an attempt.

        Args:
            begun: whether there were words of an answer.
            quiet: seconds waited without even a status.
            excess: whether the provider reported more usage than the request can have.
        """
        after = None
        if error is None or (begun and not isinstance(error, ProviderFailed)):
            outcome = CallOutcome.SUCCESS  # a client that leaves in mid-answer was served
        elif isinstance(error, ProviderFailed) and error.counts:
            outcome, after = CallOutcome.FAILURE, error.retry_after
        elif quiet >= self.provider.timeouts.between_bytes:
            # also if the client gave up: otherwise a hanging provider would never open the breaker
            outcome = CallOutcome.FAILURE
        else:
            outcome = CallOutcome.NEITHER
        before = self.breakers[model.name]
        self.breakers[model.name] = breaker.ended(before, permit, outcome, self._clock(), self._chance(), after)
        code = "ok" if error is None else "refused" if isinstance(error, BadRequest) else "left"
        if excess:
            code = EXCESS_USAGE
        if isinstance(error, ProviderFailed | DeadlineExceeded):
            code = error.code
        self._on_outcome(self.provider.id, model.name, code)


async def closing(upstreams: Mapping[str, Upstream]) -> None:
    """Close all, even if one fails."""
    async with AsyncExitStack() as stack:
        for upstream in upstreams.values():
            stack.push_async_callback(upstream.close)
