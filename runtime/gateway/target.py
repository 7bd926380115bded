"""What a request's name refers to, and a turn on that model."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from string import punctuation
from typing import Protocol
from urllib.parse import quote

from models.messages import Event, Usage
from models.tasks import Call
from registry.files.context import Ability
from registry.records import Version
from routing.decision import Decision
from routing.replicas import Reason
from tenants.costs.prices import PriceList

_UNQUOTED = punctuation.replace("%", "")
"""Characters that need no quoting in a header, besides ASCII letters and digits."""


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """The router that chose a target, and its decision."""

    router: str
    """`auto@v1`"""
    decision: Decision

    @property
    def header(self) -> str:
        score = "-" if self.decision.score is None else f"{self.decision.score:.3f}"
        reason = quote(self.decision.full_reason, _UNQUOTED)  # names of rules and intents may contain any characters
        return f"{self.router} {self.decision.target} {reason} {score}"


@dataclass(frozen=True, slots=True)
class Target:
    """One exact set of weights, and the backend that serves it."""

    requested: str
    """The name as the client wrote it."""
    model: str
    revision: str
    adapter: str | None = None
    """The adapter's name, if the request names one."""
    version: Version | None = None
    """The adapter's version."""
    backend: str = "local"
    """Name of the backend (`runtime.gateway.backend`)."""
    provider: str = ""
    """Id of the provider that answers. Empty for an engine of this server."""
    abilities: frozenset[Ability] = frozenset()
    """Abilities besides its task."""
    price: PriceList | None = None
    """The list price of its answers. None if they are free."""
    batch_price: PriceList | None = None
    """The same for lines of batches."""
    routed: RouteChoice | None = None
    """None if the client named the target itself."""
    is_strict: bool = False
    """Whether the recipe refuses hints without effect instead of ignoring them."""

    @property
    def recorded_name(self) -> str:
        """`requested` for records: without the query of an adapter's address, which may hold a signature."""
        name, query, _ = self.requested.partition("?")
        return f"{name}?…" if query and "://" in name else self.requested

    @property
    def label(self) -> str | None:
        """`name@sha256:…` of the adapter, if any."""
        return None if self.version is None else f"{self.adapter}@{self.version.digest}"

    @property
    def model_name(self) -> str:
        """`model`, or `model:adapter`."""
        return self.model if self.adapter is None else f"{self.model}:{self.adapter}"

    def for_line(self, requested: str | None = None) -> "Target":
        """This target at the price for batch lines. requested: the name in the line, if it differs."""
        return replace(self, price=self.batch_price, requested=requested or self.requested)

    def headers(self) -> dict[str, str]:
        """X-Roundhouse-Model and, where they apply, X-Roundhouse-Adapter and -Route."""
        headers = {"X-Roundhouse-Model": f"{self.model}@{self.revision}"}
        if self.label is not None:
            headers["X-Roundhouse-Adapter"] = self.label
        if self.routed is not None:
            headers["X-Roundhouse-Route"] = self.routed.header
        return headers


class LoadPending(Exception):
    """The model's load has begun, and the client does not want to wait for it."""

    def __init__(self, model: str, expected_seconds: float) -> None:
        super().__init__(model)
        self.model, self.expected_seconds = model, expected_seconds


class Lease(Protocol):
    """A turn on a target. Leaving its context manager ends it and cancels running calls."""

    load_seconds: float
    """Part of `queued_seconds` spent waiting for a load."""
    is_cold: bool
    """Whether this request caused the load that it waited for."""
    uses_device: bool
    """Whether the work uses this machine, whose time is then charged."""

    @property
    def queued_seconds(self) -> float:
        """Seconds of waiting for a turn and for the adapter's place, so far."""
        ...

    @property
    def swap_seconds(self) -> float:
        """Part of `queued_seconds` spent bringing the adapter into its place."""
        ...

    @property
    def revision(self) -> str | None:
        """Revision of the answering weights. None means the target's revision."""
        ...

    @property
    def replica(self) -> int:
        """Number of the replica that answers. 0 if the model has only one."""
        ...

    @property
    def replica_reason(self) -> Reason | None:
        """Why the replica was chosen. None if the model has only one."""
        ...

    @property
    def pool(self) -> str:
        """The recipe's pool of the turn. Empty if the recipe has no pools."""
        ...

    @property
    def first_goal(self) -> float | None:
        """The pool's goal for the first byte, in seconds."""
        ...

    @property
    def context_length(self) -> int | None:
        """The target's context length in tokens, if known."""
        ...

    @property
    def usage(self) -> Usage:
        """Usage of all calls, counted by the engine. Complete once the lease has ended."""
        ...

    @property
    def flag(self) -> str | None:
        """A code for the record of a complete but unusual answer. Final once `usage` is."""
        ...

    def run(self, call: Call) -> AsyncIterator[Event]:
        """Yield the answer's events. Raises the engine's error, or DeadlineExceeded."""
        ...


def total(usages: Iterable[Usage]) -> Usage:
    """Sum the usage of several calls; `batch` is the largest."""
    several = list(usages)
    if len(several) == 1:  # the usual case
        return several[0]
    return Usage(
        prompt_tokens=sum(u.prompt_tokens for u in several),
        completion_tokens=sum(u.completion_tokens for u in several),
        cached_tokens=sum(u.cached_tokens for u in several),
        written_tokens=sum(u.written_tokens for u in several),
        audio_seconds=sum(u.audio_seconds for u in several),
        batch=max((u.batch for u in several), default=0),
    )
