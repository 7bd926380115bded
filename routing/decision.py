"""Features of a request, facts about targets, and the decision of a router."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What the caller may know about a target."""

    usable: bool = True
    why_not: str = ""
    """Why it is not usable, in words: unknown, of another task, not for this key."""
    is_allowed: bool = True
    """Whether this key may use it. If not, its name is never revealed."""
    is_local: bool = True
    """Whether it answers on this machine."""
    is_resident: bool = True
    """Whether it can answer without a load, as providers always can."""
    waiting: int = 0
    """Requests waiting for their turn."""
    price: float = 0.0
    """Price per million tokens in any currency. Only the order matters."""
    within_budget: bool = True
    takes_images: bool = False
    calls_tools: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    targets: Mapping[str, TargetFacts] = field(default_factory=dict)
    """Targets by their names in the router's definition. A missing target is not usable."""
    previous: str | None = None
    """The conversation's previous target."""


UNKNOWN_TARGET = TargetFacts(usable=False, why_not="unknown")


Vector: TypeAlias = "npt.NDArray[np.float32]"


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Features of a request. They depend neither on the router nor on what is resident."""

    text: str = ""
    """The user's last message, or the prompt, input or query of a request without messages."""
    endpoint: str = "/v1/chat/completions"
    characters: int = 0
    """Length of the whole prompt."""
    tools: bool = False
    images: bool = False
    json_schema: bool = False
    """Whether the answer must follow a JSON schema or grammar."""
    team: str = ""
    service_class: str = "interactive"
    language: str | None = None
    """The request's language as two letters. None to guess it from the text."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header names are in lower case."""
    vector: "Vector | None" = None
    """The text's embedding by the model that the router names, of length 1. None if that model is not resident."""
    draw: float = 0.0
    """A number from 0 to 1 that decides among weights. It is the same for all requests of a conversation."""


LEFT_SUFFIX = ",left"
"""Suffix of a reason if the conversation had another target before."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The target and the reasons. Identical for traffic, explanations and offline use."""

    target: str
    """A resolvable name: a model, an adapter (`name`, `name@ref`, `base:name`) or a provider's model."""
    reason: str
    """The deciding stage and why, without blanks: `rule:tools`, `intent:dates`, `abstained`, ..."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Measurements of the stages, such as probabilities of the likeliest intents. 0 to 1."""
    alternatives: tuple[str, ...] = ()
    """The other targets that remained at the last stage, best first."""
    saw: Mapping[str, str] = field(default_factory=dict)
    """Facts about request and targets that the stages used, in words."""
    fallbacks: tuple[str, ...] = ()
    """Targets that may answer if this one fails before its first byte, in the router's order."""
    previous: str | None = None
    """The conversation's previous target, if it changed. `saw` says why."""

    @property
    def full_reason(self) -> str:
        """The reason for answers and ledger. Says whether the conversation's target changed."""
        return self.reason if self.previous is None else f"{self.reason}{LEFT_SUFFIX}"

    @property
    def score(self) -> float | None:
        """Score of the deciding stage, or of the best label below its threshold. None without scores."""
        return self.scores.get(self.reason.partition(":")[2], max(self.scores.values(), default=None))
