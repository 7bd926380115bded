"""What answers requests: a model on this machine (`runtime.gateway.local`); later a provider or another machine.

resolve(name) -> Target -> Backend.lease(context, target) -> Lease.run(call) -> events
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from string import punctuation
from typing import Any, Protocol
from urllib.parse import quote

from models.messages import EmbedRequest, Event, RerankRequest, TranscribeRequest, Usage
from registry.files.abilities import Ability
from registry.records import Version
from routing.decision import Decision
from runtime.gateway.context import RequestContext
from tenants.costs.prices import PriceList

LOCAL = ""
"""No provider can be called so."""
_AS_IT_IS = punctuation.replace("%", "")
"""What stays in a header, beside letters and digits of ASCII."""


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """That a router chose it."""

    router: str
    """`auto@v1`"""
    decision: Decision

    @property
    def header(self) -> str:
        score = self.decision.score
        full_reason = "-" if score is None else f"{score:.3f}"
        reason = quote(self.decision.full_reason, _AS_IT_IS)  # names of rules and intents are of any letters
        return f"{self.router} {self.decision.target} {reason} {full_reason}"


@dataclass(frozen=True, slots=True)
class Target:
    """What a request's name means: exactly one set of weights."""

    requested: str
    """The name as the client wrote it."""
    model: str
    revision: str
    adapter: str | None = None
    """The adapter's name, where one was named."""
    version: Version | None = None
    """The version of it that answers."""
    backend: str = LOCAL
    """`LOCAL`, or a provider's id."""
    abilities: frozenset[Ability] = frozenset()
    """What it can do beside its task."""
    price: PriceList | None = None
    """By which requests are charged; None: they are free."""
    routed: RouteChoice | None = None
    """Which router chose it, and why; None: it was named itself."""

    @property
    def label(self) -> str | None:
        """`name@sha256:…`, where an adapter answers."""
        return None if self.version is None else f"{self.adapter}@{self.version.digest}"

    @property
    def model_name(self) -> str:
        """A name of what answers, whoever chose it: `model`, or `model:adapter`."""
        return self.model if self.adapter is None else f"{self.model}:{self.adapter}"

    def headers(self) -> dict[str, str]:
        """X-Roundhouse-Model; where one answers, X-Roundhouse-Adapter; where one chose, X-Roundhouse-Route."""
        headers = {"X-Roundhouse-Model": f"{self.model}@{self.revision}"}
        if self.label is not None:
            headers["X-Roundhouse-Adapter"] = self.label
        if self.routed is not None:
            headers["X-Roundhouse-Route"] = self.routed.header
        return headers


@dataclass(frozen=True, slots=True)
class ChatPayload:
    """A request of OpenAI's or Anthropic's chat family. The backend puts its own name for the weights into `body`."""

    path: str
    body: Mapping[str, Any]
    fills: bool = False
    """The client named no number of tokens: there may be as many as there is room for, whatever the path's default."""


Call = ChatPayload | EmbedRequest | RerankRequest | TranscribeRequest


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a target is that cannot answer yet."""

    phase: str
    fraction: float


class LoadPending(Exception):
    """The client asked not to wait, and the model is not resident: its load has begun."""

    def __init__(self, model: str, expected_seconds: float) -> None:
        super().__init__(model)
        self.model, self.expected_seconds = model, expected_seconds


class Lease(Protocol):
    """A turn on something that answers. The context manager that gave it ends it, and with it what still runs."""

    @property
    def queued_seconds(self) -> float: ...
    @property
    def load_seconds(self) -> float:
        """Of these, waiting for a load."""
        ...

    @property
    def swap_seconds(self) -> float:
        """Of these, bringing its adapter into a place."""
        ...

    @property
    def pool(self) -> str:
        """The part of the target's places that it has one of; '': it has no parts."""
        ...

    @property
    def first_goal(self) -> float | None:
        """Seconds within which that part's answers are to begin."""
        ...

    @property
    def context_length(self) -> int | None:
        """Tokens that the target takes, if known."""
        ...

    @property
    def usage(self) -> Usage:
        """Of all calls so far, by the engine's own count. Complete once the lease has ended."""
        ...

    def run(self, call: Call) -> AsyncIterator[Event]:
        """The answer's events. Raises the engine's error, or DeadlineExceeded."""
        ...


class Backend(Protocol):
    def handles(self, target: Target) -> bool: ...

    def load_progress(self, target: Target) -> LoadProgress | None:
        """None: it can answer at once."""
        ...

    def total_timeout(self, target: Target) -> float | None:
        """Seconds that a request without a deadline may take over all its attempts; None: no such bound."""
        ...

    def again(self, context: RequestContext, target: Target, error: Exception) -> float | None:
        """Seconds after which a request that failed with this may be sent there once more; None: it may not."""
        ...

    def hedge_after(self, target: Target) -> float | None:
        """Seconds without a first byte after which the same target is asked a second time; None: never."""
        ...

    def spare(self, target: Target) -> bool:
        """May one attempt more be made there, beside one that is under way?"""
        ...

    def lease(self, context: RequestContext, target: Target) -> AbstractAsyncContextManager[Lease]:
        """Raises QueueFull, Unavailable, DeadlineExceeded or NotYet before anything was sent."""
        ...


def total(usages: Iterable[Usage]) -> Usage:
    """The sum of several calls' usage; `batch` is the largest."""
    usage_list = list(usages)
    if len(usage_list) == 1:  # nearly always
        return usage_list[0]
    return Usage(
        prompt_tokens=sum(u.prompt_tokens for u in usage_list),
        completion_tokens=sum(u.completion_tokens for u in usage_list),
        cached_tokens=sum(u.cached_tokens for u in usage_list),
        written_tokens=sum(u.written_tokens for u in usage_list),
        audio_seconds=sum(u.audio_seconds for u in usage_list),
        batch=max((u.batch for u in usage_list), default=0),
    )
