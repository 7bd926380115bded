"""What the page Now shows at one moment: values only, sent to all viewers as JSON."""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from console.decisions import LoggedDecision
from console.history import MinuteSeries, RequestRow

StallState = Literal["run", "held", "swap"]


class Stall(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int
    adapter: str
    state: StallState
    running: int = 0
    waiting: int = 0
    pinned: bool = False


class Ring(msgspec.Struct, frozen=True, kw_only=True):
    """The adapter places of one base."""

    model: str
    state: str
    places: int
    stalls: list[Stall]
    host_used: int
    host_places: int
    running: int
    waiting: int
    adapters: int
    away: list[str]
    """Adapters that are in no place; some of them where there are many."""


class ModelPart(msgspec.Struct, frozen=True, kw_only=True):
    """A model, and what it holds."""

    id: str
    task: str
    state: str
    bytes: int
    host_bytes: int
    running: int
    waiting: int
    pinned: bool
    idle_seconds: float | None
    wake_seconds: float | None
    phase: str = ""
    percent: float | None = None
    detail: str = ""
    failure: str = ""


class MemoryUse(msgspec.Struct, frozen=True):
    """Memory of a device, or of the host beside it."""

    label: str
    budget: int
    held: int


class LastRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One that has ended, in a line; the page Requests tells the rest."""

    id: str
    team: str
    service_class: str
    answered_by: str
    """`chat`, `chat:legal` or `provider/model`; the requested name where nothing answered."""
    why: str
    """Reason of a router's choice; '' without a router."""
    end: str
    causes: dict[str, float]
    total: float

    @classmethod
    def of(cls, row: RequestRow) -> "LastRequest":
        local = f"{row.model}:{row.adapter}" if row.adapter else row.model
        return cls(
            id=row.id, team=row.team, service_class=row.service_class, end=row.end, causes=row.causes, total=row.total,
            answered_by=(f"{row.provider}/{row.model}" if row.provider else local) or row.asked,
            why=row.route.reason if row.route else "",
        )  # fmt: skip


class LiveView(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    phase: str
    uptime: float
    device: MemoryUse
    host: MemoryUse | None
    models: list[ModelPart]
    rings: list[Ring]
    running: int
    waiting: int
    longest_wait: float
    next_to_leave: dict[str, str]
    """Models that leave first if another one needs room on their device, and how; empty: none could go now."""
    minute: MinuteSeries
    cost_per_accepted: float | None
    """Since the start, in the server's currency; None: no answer was accepted, or the viewer may not see it."""
    currency: str
    decisions: list[LoggedDecision]
    shares: dict[str, float] | None
    """Seconds in engines by team; None for viewers who may not see other teams."""
    requests: list[LastRequest]
    """The last that ended: of all teams, or of the viewer's."""


class Stalls:
    """Stall numbers of one base, by digest."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}

    def assign(self, places: int, placed: Iterable[str], moving: Mapping[str, str | None]) -> dict[str, int]:
        """placed: in a place; moving: on the way into one, with whom it replaces."""
        before = self._at
        stalls = {digest: before[digest] for digest in placed if before.get(digest, places) < places}
        for digest, victim in moving.items():
            taken = before.get(digest, before.get(victim or "", places))
            if taken < places and taken not in stalls.values():
                stalls[digest] = taken
        free = iter(sorted(set(range(places)) - set(stalls.values())))
        for digest in (*placed, *moving):
            if digest not in stalls and (number := next(free, None)) is not None:
                stalls[digest] = number
        self._at = stalls
        return stalls
