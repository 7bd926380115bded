"""What the page Now shows at one moment: values only, sent to all viewers as JSON."""

from typing import Literal

import msgspec

from console.decisions import LoggedDecision
from console.history import Minute

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


class Now(msgspec.Struct, frozen=True, kw_only=True):
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
    minute: Minute
    decisions: list[LoggedDecision]
    shares: dict[str, float] | None
    """Seconds in engines by team; None for who may not see other teams."""
