"""Who must leave so that a model can come: a pure function from a snapshot to a plan. No I/O, no clock, no log.

The same function answers traffic and `POST /v1/models/{id}/plan`, so that what is explained is what happens.

Decision tree (the numbers stand in the code):
 1. Already on the device: nothing to do.
 2. Needs more than the budget less what is pinned: it can never start; say the sum.
 3. A slot and enough bytes are free: load.
 4. Candidates are READY or ASLEEP, not pinned, resident for at least their `min_resident`. Order: least recently
    used first, where a model that takes s seconds to load counts as used COST_WEIGHT * s seconds later than it was
    (so of two models idle for about as long, the one that is cheap to bring back leaves first).
 5. Idle candidates leave first, as few as are needed.
 6. Busy ones leave only when the waiting model has waited longer than `patience`: admission to the victim closes,
    its running requests finish, nothing is dropped.
 7. Otherwise wait; `retry_at` says when the picture can change by itself.

Bound: a model at the head of the line waits at most
    max(patience, the victims' min_resident) + the victims' drain_deadline + its own load time,
and the line is served in order of the oldest waiting request, so k models before it add k such terms at most.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from runtime.residency.states import ModelState

COST_WEIGHT = 1.0
"""Seconds of recency per second of load time (step 4)."""


@dataclass(frozen=True, slots=True)
class Resident:
    """One model that holds memory. Times are seconds on one monotonic clock."""

    id: str
    state: ModelState
    bytes: int
    leases: int
    last_used: float
    loaded_at: float
    min_resident: float
    drain_deadline: float
    load_seconds: float
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the policy may look at. `slots_free` counts empty slots that nobody has claimed."""

    budget: int
    residents: tuple[Resident, ...]
    slots_free: int
    now: float


@dataclass(frozen=True, slots=True)
class Need:
    """The model that wants to come."""

    id: str
    bytes: int
    load_seconds: float
    waiting_since: float
    patience: float = 1.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Victim:
    id: str
    bytes: int
    leases: int
    action: Literal["evict", "drain"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. `verdict`: resident, load, wait or impossible; `victims` leave before the load starts."""

    model: str
    verdict: Literal["resident", "load", "wait", "impossible"]
    needed: int
    free: int
    budget: int
    victims: tuple[Victim, ...] = ()
    expected_seconds: float = 0.0
    retry_at: float | None = None
    why: str = ""


_LEAVING = frozenset({ModelState.DRAINING, ModelState.UNLOADING})


def plan(snapshot: Snapshot, need: Need) -> Plan:
    """Decide for one model; see the tree above."""
    free = snapshot.budget - sum(r.bytes for r in snapshot.residents if r.state not in _LEAVING)
    slots = snapshot.slots_free + sum(r.state in _LEAVING for r in snapshot.residents)

    def answer(verdict: Literal["resident", "load", "wait", "impossible"], why: str, **more: object) -> Plan:
        return Plan(need.id, verdict, need.bytes, free, snapshot.budget, why=why, **more)  # type: ignore[arg-type]

    for r in snapshot.residents:  # 1
        if r.id == need.id and r.state in (ModelState.READY, ModelState.LOADING):
            return answer("resident", f"{need.id} is {r.state.value}")

    pinned = sum(r.bytes for r in snapshot.residents if r.pinned and r.id != need.id)
    if need.bytes > snapshot.budget - pinned:  # 2
        return answer("impossible", _impossible(snapshot, need, pinned))

    if need.bytes <= free and slots > 0:  # 3
        return answer("load", "enough is free", expected_seconds=need.load_seconds)

    def score(r: Resident) -> float:
        return r.last_used + COST_WEIGHT * r.load_seconds

    may_leave = [  # 4
        r
        for r in snapshot.residents
        if r.id != need.id and not r.pinned and r.state in (ModelState.READY, ModelState.ASLEEP)
    ]
    ripe = sorted((r for r in may_leave if r.loaded_at + r.min_resident <= snapshot.now), key=score)
    idle = [r for r in ripe if not r.leases]
    forced = snapshot.now - need.waiting_since >= need.patience
    for pool in (idle, ripe) if forced else (idle,):  # 5, 6
        chosen = _enough(pool, need.bytes - free, slots)
        if chosen is not None:
            victims = tuple(Victim(r.id, r.bytes, r.leases, "drain" if r.leases else "evict") for r in chosen)
            drain = max((r.drain_deadline for r in chosen if r.leases), default=0.0)
            return answer(
                "load",
                "least recently used leave first",
                victims=victims,
                expected_seconds=need.load_seconds + min(drain, 5.0),
            )

    times = [r.loaded_at + r.min_resident for r in may_leave if r.loaded_at + r.min_resident > snapshot.now]  # 7
    if not forced:
        times.append(need.waiting_since + need.patience)
    return answer(
        "wait",
        "all who could leave are busy, pinned, just loaded or still loading",
        retry_at=min(times, default=None),
        expected_seconds=need.load_seconds + max((t - snapshot.now for t in times), default=0.0),
    )


def _enough(pool: Iterable[Resident], missing: int, slots: int) -> tuple[Resident, ...] | None:
    """The fewest from the front of `pool` that free `missing` bytes and at least one slot; None: not enough."""
    chosen: list[Resident] = []
    freed = 0
    for r in pool:
        if freed >= missing and slots + len(chosen) > 0:
            break
        chosen.append(r)
        freed += r.bytes
    if freed < missing or slots + len(chosen) <= 0:
        return None
    kept = list(chosen)
    for r in chosen:  # a later, larger one may have made an earlier one unnecessary
        if freed - r.bytes >= missing and slots + len(kept) - 1 > 0:
            kept.remove(r)
            freed -= r.bytes
    return tuple(kept)


def _impossible(snapshot: Snapshot, need: Need, pinned: int) -> str:
    parts = f"{need.id} needs {human(need.bytes)}"
    if need.detail:
        parts += f" ({need.detail})"
    parts += f", the budget is {human(snapshot.budget)}"
    if pinned:
        names = ", ".join(r.id for r in snapshot.residents if r.pinned and r.id != need.id)
        parts += f", of which pinned models hold {human(pinned)} ({names}): unpin one or"
    else:
        parts += ":"
    return parts + " raise the budget, or lower kv_cache, context_length or adapter places in its recipe."


def human(size: float) -> str:
    """Bytes for people: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
