"""What a router decides of one request."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LEFT_SUFFIX = ",left"
"""Behind a reason: the conversation had another target before."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The target, and everything that is needed to see why. The same for traffic, for explain and offline."""

    target: str
    """A name that resolves: a model, an adapter (`name`, `name@ref`, `base:name`) or a provider's model."""
    reason: str
    """Which stage decided and on what, as one word without blanks: `rule:tools`, `intent:dates`, `abstained`, ..."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """What the stages measured, such as the probabilities of the likeliest intents. 0 to 1."""
    alternatives: tuple[str, ...] = ()
    """The other targets that were left when the last stage chose, best first."""
    saw: Mapping[str, str] = field(default_factory=dict)
    """What of the request and of the targets the stages looked at, in words."""
    fallbacks: tuple[str, ...] = ()
    """Targets that may answer if this one fails before its first byte, in the router's order."""
    previous: str | None = None
    """The target that this conversation had so far, where it is another one now; `saw` says why."""

    @property
    def full_reason(self) -> str:
        """The reason as answers and the ledger have it: it also says that a conversation's target was left."""
        return self.reason if self.previous is None else f"{self.reason}{LEFT_SUFFIX}"

    @property
    def score(self) -> float | None:
        """Score of the deciding stage, or of the likeliest label below the threshold; None: no score."""
        return self.scores.get(self.reason.partition(":")[2], max(self.scores.values(), default=None))
