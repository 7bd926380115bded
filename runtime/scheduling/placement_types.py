"""What the placement policy answers with, and its bound on waiting."""

from dataclasses import dataclass
from math import ceil
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
    stagings: int
    placements: int
    evictions: int
    """Times that it lost its place."""
    last_use: float | None


@dataclass(slots=True)
class Counts:
    """Running figures of one adapter; meanings as in `AdapterStatus`."""

    hits: int = 0
    misses: int = 0
    stagings: int = 0
    placements: int = 0
    evictions: int = 0
    last_use: float | None = None


def wait_bound(
    *,
    places: int,
    host: int,
    max_requests: int,
    max_overtake: float,
    staging_at_once: int,
    ahead: int,
    adapters_ahead: int,
    longest_run: float,
    longest_stage: float,
    longest_place: float,
) -> float:
    """Seconds within which a request starts where ranks are arrivals: W + (⌈A/m⌉ + 1)·(S + 2P + 2D) + ⌈(Q+1)/R⌉·D.

    W max_overtake, R max_requests, S, P, D the longest staging, placing (with its probe) and run; Q (`ahead`) requests
    were waiting when it came, for A (`adapters_ahead`) adapters, its own counted.
    m = min(places, staging_at_once, max(host, places + 1) - places) adapters can be brought in side by side.
    `places`: the unpinned ones.
    """
    lanes = min(places, staging_at_once, max(host, places + 1) - places)
    rounds = ceil(adapters_ahead / lanes) + 1
    swap = longest_stage + 2 * longest_place + 2 * longest_run
    return max_overtake + rounds * swap + ceil((ahead + 1) / max_requests) * longest_run
