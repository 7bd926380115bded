"""The interface of backends: local models, providers, other servers of the fleet.

    Backend.resolve(name) -> Target;  Backend.lease(request) -> Lease;  Lease.run(call) -> events
    where there is a Relay:           Relay.send(request)    -> Answer;  status, headers, bytes

A backend is one folder below this one and one entry in `opening`. No other code depends on which backend a target has.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from runtime.gateway.names import ModelRef
from runtime.gateway.request import Request
from runtime.gateway.target import Lease, Target
from tenants.caller import Caller


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of the load of a target that is not ready."""

    phase: str
    fraction: float


@dataclass(frozen=True, slots=True)
class TargetState:
    """Snapshot of a target's state, for routers."""

    is_local: bool
    """Whether the request stays on this server or in its fleet."""
    is_resident: bool
    """Whether it can answer without a load."""
    waiting: int
    """Requests in its queue."""


class RetryPolicy(Protocol):
    """A backend's rules for retrying a failed request at the same target."""

    def total_timeout(self, target: Target) -> float | None:
        """Seconds for all attempts of a request without a deadline. None means no bound."""
        ...

    def retry_delay(self, target: Target, error: Exception, attempts: int, seconds_left: float | None) -> float | None:
        """Seconds until the next attempt, or None to give up. attempts: the number made so far."""
        ...


class RelayedAnswer(Protocol):
    """An answer of another server that has begun and is forwarded unchanged."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers with lower-case names, without hop-by-hop headers."""
        ...

    async def read(self) -> bytes:
        """Return the next bytes of the body, or b'' at its end. Raises NodeFailed if it breaks off."""
        ...


class Relay(Protocol):
    """Forwards whole requests to another server, which admits, counts and records them."""

    def send(self, request: Request, target: Target) -> AbstractAsyncContextManager[RelayedAnswer]:
        """Forward a request. Leaving early cancels it there. Raises NodeFailed, Unavailable."""
        ...


class Backend(Protocol):
    @property
    def name(self) -> str:
        """`Target.backend` of its targets."""
        ...

    @property
    def retry(self) -> RetryPolicy | None:
        """The retry policy. None if failures are final, as for a backend with its own queue."""
        ...

    @property
    def relay(self) -> Relay | None:
        """Set if whole answers are relayed. None if answers are the events of a lease."""
        ...

    def resolve(self, model_ref: ModelRef, caller: Caller) -> Target | None:
        """Resolve a name. None if it belongs to another backend. Raises BadRequest, NotFound, Forbidden."""
        ...

    def load_progress(self, target: Target) -> LoadProgress | None:
        """Progress of the target's load. None if it can answer at once."""
        ...

    def context_length(self, target: Target) -> int | None:
        """The target's context length in tokens, if known."""
        ...

    def state_of(self, target: Target) -> TargetState: ...

    def lease(self, request: Request, target: Target) -> AbstractAsyncContextManager[Lease]:
        """Wait for a turn. Raises QueueFull, Unavailable, DeadlineExceeded or LoadPending before any work."""
        ...
