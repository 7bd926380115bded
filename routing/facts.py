"""What is known of a router's targets at the moment of a decision."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """One target, as far as the caller may see it."""

    usable: bool = True
    why_not: str = ""
    """In words, where it is not usable: unknown, not for this task, not for this key."""
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
    """By the name that the router's definition has for them. Who is not there is not usable."""
    previous: str | None = None
    """The target that this conversation had so far."""


UNKNOWN_TARGET = TargetFacts(usable=False, why_not="unknown")
