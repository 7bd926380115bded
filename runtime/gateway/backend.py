"""The interface of backends: local models, providers, other servers of the fleet.

    Backend.resolve(name) -> Target;  Backend.lease(request) -> Lease;  Lease.run(call) -> events
    where there is a Relay:           Relay.send(request)    -> Answer;  status, headers, bytes

A backend is one folder below this one and one entry in `opening`. Nothing else looks at which backend a target has.
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
    """Progress of the load of a target that cannot answer yet."""

    phase: str
    fraction: float


@dataclass(frozen=True, slots=True)
class TargetState:
    """A target's state at one moment, for routers."""

    is_local: bool
    """Nothing of the request leaves this server, or its fleet."""
    is_resident: bool
    """It can answer without a load."""
    waiting: int
    """Requests in its queue."""


class RetryPolicy(Protocol):
    """A backend's rules for sending a failed request to the same target once more."""

    def total_timeout(self, target: Target) -> float | None:
        """Seconds for all attempts of a request without a deadline; None: no bound."""
        ...

    def retry_delay(self, target: Target, error: Exception, attempts: int, seconds_left: float | None) -> float | None:
        """Seconds until the next attempt; None: there is none. attempts: made so far."""
        ...


class RelayedAnswer(Protocol):
    """An answer of another server that has begun, and is passed on unchanged."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers in lower case, without those of the connection."""
        ...

    async def read(self) -> bytes:
        """The next bytes of the body; b'': it has ended. Raises NodeFailed if it breaks off."""
        ...


class Relay(Protocol):
    """The way of a whole request to another server, which admits, counts and records it."""

    def send(self, request: Request, target: Target) -> AbstractAsyncContextManager[RelayedAnswer]:
        """Raises NodeFailed, Unavailable. Leaving early cancels the request there."""
        ...


class Backend(Protocol):
    @property
    def name(self) -> str:
        """`Target.backend` of its targets."""
        ...

    @property
    def retry(self) -> RetryPolicy | None:
        """The retry policy; None: a failure is final, as where the backend's own queue waits."""
        ...

    @property
    def relay(self) -> Relay | None:
        """A relay of whole answers, without leases; None: answers are events of leases."""
        ...

    def resolve(self, model_ref: ModelRef, caller: Caller) -> Target | None:
        """Resolve a name; None: another backend's. Raises BadRequest, NotFound, Forbidden."""
        ...

    def load_progress(self, target: Target) -> LoadProgress | None:
        """Progress of a load; None: the target can answer at once."""
        ...

    def context_length(self, target: Target) -> int | None:
        """Tokens that the target takes, if known."""
        ...

    def state_of(self, target: Target) -> TargetState: ...

    def lease(self, request: Request, target: Target) -> AbstractAsyncContextManager[Lease]:
        """Raises QueueFull, Unavailable, DeadlineExceeded or LoadPending before any work."""
        ...
