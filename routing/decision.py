"""Features of a request, facts about targets, and the decision of a router."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """A target, as far as the caller may see it."""

    usable: bool = True
    why_not: str = ""
    """The reason in words why it is not usable: unknown, not for this task, not for this key."""
    is_allowed: bool = True
    """False where this key may not use it; its name is then never revealed."""
    is_local: bool = True
    """It answers on this machine."""
    is_resident: bool = True
    """It can answer without a load, as providers always can."""
    waiting: int = 0
    """Requests that have no turn yet."""
    price: float = 0.0
    """Price of a million tokens in any currency: only the order counts."""
    within_budget: bool = True
    takes_images: bool = False
    calls_tools: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    targets: Mapping[str, TargetFacts] = field(default_factory=dict)
    """Targets by the names that the router's definition has for them. A target that is missing is not usable."""
    previous: str | None = None
    """The target that this conversation had so far."""


UNKNOWN_TARGET = TargetFacts(usable=False, why_not="unknown")


Vector: TypeAlias = "npt.NDArray[np.float32]"


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """A request's features, which depend neither on the router nor on what is resident."""

    text: str = ""
    """The last thing that the user said; of a request without messages its prompt, input or query."""
    endpoint: str = "/v1/chat/completions"
    characters: int = 0
    """Characters of the whole prompt."""
    tools: bool = False
    images: bool = False
    json_schema: bool = False
    """The answer is to follow a JSON schema or grammar."""
    team: str = ""
    service_class: str = "interactive"
    language: str | None = None
    """The request's language in two letters; None: to be guessed from the text."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    vector: "Vector | None" = None
    """The text's embedding by the model that the router names, of length 1; None: that model is not resident."""


LEFT_SUFFIX = ",left"
"""Behind a reason: the conversation had another target before."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The target and the reasons. The same for traffic, explain and offline."""

    target: str
    """A name that resolves: a model, an adapter (`name`, `name@ref`, `base:name`) or a provider's model."""
    reason: str
    """The stage that decided and why, as one word without blanks: `rule:tools`, `intent:dates`, `abstained`, ..."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """The stages' measurements, such as the probabilities of the likeliest intents. 0 to 1."""
    alternatives: tuple[str, ...] = ()
    """The other targets that were left when the last stage chose, best first."""
    saw: Mapping[str, str] = field(default_factory=dict)
    """The facts of request and targets that the stages used, in words."""
    fallbacks: tuple[str, ...] = ()
    """Targets that may answer if this one fails before its first byte, in the router's order."""
    previous: str | None = None
    """The target that this conversation had so far, where it is another one now; `saw` says why."""

    @property
    def full_reason(self) -> str:
        """The reason for answers and ledger; says if a conversation's target was left."""
        return self.reason if self.previous is None else f"{self.reason}{LEFT_SUFFIX}"

    @property
    def score(self) -> float | None:
        """Score of the deciding stage, or of the best label below its threshold; None."""
        return self.scores.get(self.reason.partition(":")[2], max(self.scores.values(), default=None))
