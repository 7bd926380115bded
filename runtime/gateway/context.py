"""What is known of one request beside its body: made once when it arrives, passed on, never looked up."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

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
    attempt: int = 1
    source: Source = "api"
    """Who is charged, and what is counted."""
    preference: Preference = field(default_factory=Preference)
    headers: Sequence[tuple[bytes, bytes]] = field(default=(), repr=False)
    """As they came, keys among them; routers look at those that they name."""

    def seconds_left(self) -> float | None:
        """Until the deadline, 0 once it has passed; None: there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
