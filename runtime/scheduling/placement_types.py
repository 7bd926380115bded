"""What the placement policy answers with."""

from dataclasses import dataclass
from typing import Literal

Tier = Literal["device", "host", "staging", "disk"]


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """What to do now. A staging may begin only when the drops of this and of earlier plans have
    ended: the host tier has no room for both, and one digest may stand in both.

    place: (digest, digest whose place it takes, or None for a free place).
    start: request ids, in order; each has its lease.
    wake_at: call `decide` again at this time, if nothing happens before; None: only when something happens.
    """

    stage: tuple[str, ...] = ()
    place: tuple[tuple[str, str | None], ...] = ()
    drop: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """Where an adapter is and what it did since the engine's base was first loaded."""

    tier: Tier
    pinned: bool
    running: int
    waiting: int
    hits: int
    """Requests that found the adapter in a place when they came."""
    misses: int
    placements: int
    evictions: int
    """Times that it lost its place."""


@dataclass(slots=True)
class Counts:
    """Running figures of one adapter; meanings as in `AdapterStatus`."""

    hits: int = 0
    misses: int = 0
    placements: int = 0
    evictions: int = 0
