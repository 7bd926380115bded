"""A request's caller, class, deadline and arrival."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from runtime.gateway.target import RouteChoice
from tenants.caller import EVERYBODY, Caller, ServiceClass
from tenants.ledger.rows import Rider, Settlement

Source = Literal["api", "batch", "shadow", "evaluation", "probe"]


@dataclass(frozen=True, slots=True)
class Preference:
    """The client's preferences: RFC 7240's `Prefer`, and our progress header."""

    respond_async: bool = False
    wait: float | None = None
    """Seconds at most; None: as long as the recipe's queue.max_wait."""
    progress: bool = False
    """A stream may begin before the model is there, with comments that report the load."""
    strict: bool = False
    """Hints that the model cannot follow are refused instead of left out."""


@dataclass(frozen=True, slots=True)
class RequestHints:
    """Hints about work and urgency in headers and body, before the body is parsed."""

    size: int = 0
    """Bytes of the input."""
    most_tokens: int | None = None
    """Bound on the answer's tokens."""
    service_class: ServiceClass | None = None
    """The class that the client requested, whether or not it gets it; None: it requested none."""
    echoes_class: bool = False
    """The answer's body repeats the class: the client used the field of its vendor."""


class Trace(Protocol):
    """A request's position in a trace (`runtime.gateway.tracing`)."""

    @property
    def headers(self) -> Mapping[str, str]:
        """`traceparent`, and `tracestate` if there is one, to pass on."""
        ...

    def calling(self, provider: str, model: str) -> AbstractContextManager[Mapping[str, str]]:
        """Span around one attempt at a provider: the headers to send to it."""
        ...


class TranscriptSink(Protocol):
    """Takes the words of one request and its answer, where the team stores them."""

    def begin(self, content_type: str) -> None:
        """The answer of an attempt begins."""
        ...

    def feed(self, data: bytes) -> None:
        """A piece of the answer."""
        ...

    def end(self) -> None:
        """End the texts: nothing more comes."""
        ...


class Transcripts(Protocol):
    def is_enabled(self, team: str) -> bool:
        """Whether the team has the words of its requests stored."""
        ...

    def start(self, body: bytes) -> TranscriptSink:
        """A transcript that begins with the words of a body."""
        ...


class LineSink(Protocol):
    """Takes the answer to a line of a batch, to be written with the end of its row in the ledger."""

    @property
    def own_name(self) -> str | None:
        """The name that the line has, and its answer repeats, where the request names the pinned version instead."""
        ...

    def answer(self, status: int, body: bytes, retry_after: float | None = None) -> None:
        """The whole answer, or the error as an answer, before the request's end is recorded."""
        ...

    def rider(self, settled: Settlement, *, reached_engine: bool) -> Rider:
        """The part that is written with this end. reached_engine: the request had a turn and kept it."""
        ...


class ExactTarget(Protocol):
    """The weights that another server of the fleet chose for a request that it passes on."""

    @property
    def model(self) -> str: ...

    @property
    def revision(self) -> str: ...

    @property
    def adapter(self) -> str:
        """The adapter's name; '': none."""
        ...

    @property
    def digest(self) -> str:
        """The digest of the adapter's version."""
        ...

    @property
    def requested(self) -> str:
        """The name as the client wrote it."""
        ...

    @property
    def route_choice(self) -> RouteChoice | None:
        """The router's choice; None: no router chose."""
        ...


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The facts about a request; `runtime.http.hints` makes them from its headers, key and body."""

    id: str
    """The client's X-Request-Id, so not unique; or ours, which is."""
    caller: Caller = EVERYBODY
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    arrived: float = field(default_factory=time.monotonic)
    """Monotonic seconds."""
    deadline: float | None = None
    """Monotonic seconds; None: as long as it takes."""
    first_by: float | None = None
    """Monotonic seconds at which the client gives up if no answer has begun."""
    hints: RequestHints = field(default_factory=RequestHints)
    source: Source = "api"
    """Decides who is charged, and what is counted."""
    preference: Preference = field(default_factory=Preference)
    headers: Sequence[tuple[bytes, bytes]] = field(default=(), repr=False)
    """The request's headers, keys among them; routers read those that they name."""
    line: LineSink | None = field(default=None, repr=False)
    """The line of a batch that this request is; its source is `batch` then."""
    hop: ExactTarget | None = field(default=None, repr=False)
    """The hop that brought it from another server of the fleet; None: the client sent it here."""

    @property
    def begin_by(self) -> float | None:
        """Monotonic seconds until which the answer has to begin."""
        if self.deadline is None or self.first_by is None:
            return self.first_by if self.deadline is None else self.deadline
        return min(self.deadline, self.first_by)

    def seconds_left(self) -> float | None:
        """Seconds until the answer has to begin, at least 0; None: no such time."""
        by = self.begin_by
        return None if by is None else max(0.0, by - time.monotonic())
