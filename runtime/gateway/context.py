"""A request's caller, class, deadline and arrival."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from batches.work.running import LineAttempt
from runtime.gateway.target import RouteChoice
from tenants.caller import EVERYBODY, Caller, ServiceClass

Source = Literal["api", "batch", "shadow", "evaluation", "probe"]


@dataclass(frozen=True, slots=True)
class Preference:
    """The client's preferences: RFC 7240's `Prefer`, and our progress header."""

    respond_async: bool = False
    wait: float | None = None
    """Longest wait in seconds. None means the recipe's queue.max_wait."""
    progress: bool = False
    """Whether a stream may begin before the model is loaded, with comments that report the progress."""
    strict: bool = False
    """Whether hints that the model cannot follow are refused instead of ignored."""


@dataclass(frozen=True, slots=True)
class RequestHints:
    """Work and urgency of a request, read from headers and body before the body is parsed."""

    size: int = 0
    """Bytes of the input."""
    most_tokens: int | None = None
    """Most tokens that the answer may have."""
    service_class: ServiceClass | None = None
    """The class that the client requested, whether or not it is granted. None if it requested none."""
    echoes_class: bool = False
    """Whether the answer's body repeats the class, because the request set it in the vendor's field."""


class Trace(Protocol):
    """A request's position in a trace (`runtime.gateway.tracing`)."""

    @property
    def headers(self) -> Mapping[str, str]:
        """`traceparent`, and `tracestate` if there is one, to pass on."""
        ...

    def calling(self, provider: str, model: str) -> AbstractContextManager[Mapping[str, str]]:
        """Open a span around one attempt at a provider, and yield the headers to send."""
        ...


@dataclass(frozen=True, slots=True)
class ExactTarget:
    """The weights that another server of the fleet chose for a request that it forwards."""

    model: str
    revision: str
    adapter: str
    """The adapter's name. Empty if there is none."""
    digest: str
    """The digest of the adapter's version."""
    requested: str
    """The name as the client wrote it."""
    route_choice: RouteChoice | None
    """The router's choice. None if no router was involved."""
    may_move: bool = False
    """Whether the other server can send it to another node instead, because this is its first attempt."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Facts about a request, which `runtime.http.hints` takes from its headers, key and body."""

    id: str
    """The client's X-Request-Id, which may not be unique, or else one of ours."""
    caller: Caller = EVERYBODY
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    arrived: float = field(default_factory=time.monotonic)
    """Monotonic seconds."""
    deadline: float | None = None
    """Monotonic seconds. None if there is no deadline."""
    first_by: float | None = None
    """Monotonic seconds at which the client gives up if no answer has begun."""
    hints: RequestHints = field(default_factory=RequestHints)
    source: Source = "api"
    """Decides who is charged, and what is counted."""
    preference: Preference = field(default_factory=Preference)
    headers: Sequence[tuple[bytes, bytes]] = field(default=(), repr=False)
    """The request's headers, including credentials. Routers read only those that they name."""
    line: LineAttempt | None = field(default=None, repr=False)
    """The batch line that this request answers, if `source` is `batch`."""
    hop: ExactTarget | None = field(default=None, repr=False)
    """The hop from another server of the fleet. None if the client sent the request here."""

    @property
    def begin_by(self) -> float | None:
        """Monotonic time by which the answer has to begin."""
        if self.deadline is None or self.first_by is None:
            return self.first_by if self.deadline is None else self.deadline
        return min(self.deadline, self.first_by)

    def seconds_left(self) -> float | None:
        """Seconds until the answer has to begin, at least 0. None if there is no bound."""
        by = self.begin_by
        return None if by is None else max(0.0, by - time.monotonic())
