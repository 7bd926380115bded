"""What is known of one request beside its body: made once when it arrives, passed on, never looked up."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tenants.caller import EVERYBODY, Caller
from tenants.classes import ServiceClass

Source = Literal["api", "batch", "shadow", "evaluation", "probe"]


@dataclass(frozen=True, slots=True)
class Preference:
    """How the client wants to wait for a model that is not resident (`runtime.http.preferences`)."""

    respond_async: bool = False
    wait: float | None = None
    """Seconds at most; None: as long as the recipe's queue.max_wait."""
    progress: bool = False
    """A stream may begin before the model is there, with comments that tell the progress."""


@dataclass(frozen=True, slots=True)
class RequestHints:
    """What a body tells of the work that it is, and of who is to go first; what is known of it before it is read."""

    size: int = 0
    """Bytes of what is to be worked on."""
    most_tokens: int | None = None
    """Of the answer."""
    service_class: ServiceClass | None = None
    """The class that was asked for, also where another one is given; None: none was named."""
    echoes_class: bool = False
    """The answer's body tells the class that is given: the client named one where its vendor does."""


class Trace(Protocol):
    """A request's place in a trace (`runtime.gateway.tracing`)."""

    @property
    def headers(self) -> Mapping[str, str]:
        """`traceparent`, and `tracestate` if there is one, for who works on it."""
        ...

    def calling(self, provider: str, model: str) -> AbstractContextManager[Mapping[str, str]]:
        """Around one attempt at a provider: the headers that it is sent."""
        ...


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, how urgently, and since when."""

    id: str
    """The client's X-Request-Id, so not unique; or ours, which is."""
    caller: Caller = EVERYBODY
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    arrived: float = field(default_factory=time.monotonic)
    """Monotonic seconds."""
    deadline: float | None = None
    """Monotonic seconds; None: as long as it takes."""
    first_by: float | None = None
    """When its client gives up if nothing has come: the answer has to begin before."""
    hints: RequestHints = field(default_factory=RequestHints)
    tried: tuple[str, ...] = ()
    """Models of the attempts before this one."""
    source: Source = "api"
    """Who is charged, and what is counted."""
    preference: Preference = field(default_factory=Preference)
    headers: Sequence[tuple[bytes, bytes]] = field(default=(), repr=False)
    """As they came, keys among them; routers look at those that they name."""
    trace: Trace | None = field(default=None, repr=False)
    """None: no traces are kept."""

    @property
    def attempt(self) -> int:
        """From 1."""
        return len(self.tried) + 1

    @property
    def begin_by(self) -> float | None:
        """Monotonic seconds until which the answer has to begin."""
        if self.deadline is None or self.first_by is None:
            return self.first_by if self.deadline is None else self.deadline
        return min(self.deadline, self.first_by)

    def seconds_left(self) -> float | None:
        """Until the answer has to begin, 0 once that has passed; None: there is no such time."""
        by = self.begin_by
        return None if by is None else max(0.0, by - time.monotonic())
