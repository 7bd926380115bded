"""Fleet: the servers, their memory, the models they serve, and why requests go where."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from console.host import Context, FleetMember, FleetReplica, Host, Page, Visit
from registry.errors import NotFound
from tenants.caller import Scope

MAX_ROWS = 200
"""Most rows per table. The command line shows all."""
SOON_SECONDS = 14 * 86_400
"""Certificates that expire within this time are highlighted."""
REASONS = {
    "prompt": "the start of its prompt is cached there",
    "adapter": "its adapter is in a place there",
    "soonest": "it starts soonest there",
    "busy": "the others are busier",
    "free": "free at once",
    "only": "the only one that serves the model",
    "loading": "it loads the model",
    "asleep": "the model sleeps there",
    "home": "the model's home, which loads it",
    "left": "better servers were already tried",
}
"""Words for each reason in `GET /v1/fleet`."""
GAP = 1.0
"""Gap between two devices in a ring, in hundredths of it."""


@dataclass(frozen=True, slots=True)
class Arc:
    """A device's arc in the ring of a server, in hundredths of the ring."""

    start: float
    length: float
    used: float


@dataclass(frozen=True, slots=True)
class Server:
    member: FleetMember
    arcs: Sequence[Arc]

    @property
    def running(self) -> int:
        return sum(model.running for model in self.member.models)

    @property
    def waiting(self) -> int:
        return sum(model.waiting for model in self.member.models)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model in the memory of a node."""

    node: str
    replica: FleetReplica


async def context(visit: Visit) -> Context:
    fleet = visit.host.fleet()
    if fleet is None:
        raise NotFound("This server belongs to no fleet.", code="no_fleet")
    served = sorted(_served(fleet.members), key=lambda one: (one.replica.model, one.node))
    return {
        "fleet": fleet,
        "servers": [Server(member, arcs(member)) for member in fleet.members[:MAX_ROWS]],
        "more_servers": max(0, len(fleet.members) - MAX_ROWS),
        "served": served[:MAX_ROWS],
        "more_served": max(0, len(served) - MAX_ROWS),
        "soon": SOON_SECONDS,
        "reasons": REASONS,
        "most": MAX_ROWS,
        "may": visit.may(Scope.ADMIN),
    }


def arcs(member: FleetMember) -> list[Arc]:
    """Return an arc per device: its length is the device's share of memory, its filled part the models' share."""
    total = sum(device.budget_bytes for device in member.devices)
    gap = GAP if len(member.devices) > 1 else 0.0
    result, start = [], 0.0
    for device in member.devices:
        share = 100 * device.budget_bytes / total if total else 0.0
        length = max(0.0, share - gap)
        filled = min(1.0, device.used_bytes / device.budget_bytes) if device.budget_bytes else 0.0
        result.append(Arc(start, length, length * filled))
        start += share
    return result


def _served(members: Sequence[FleetMember]) -> Iterator[ServedModel]:
    for member in members:
        for replica in member.models:
            yield ServedModel(member.name, replica)


def _is_in_fleet(host: Host) -> bool:
    return host.own_server is not None


PAGE = Page(
    "Fleet", 58, frozenset((Scope.MODELS,)), context, frozenset(("servers", "served", "desired", "limits", "passed")),
    is_available=_is_in_fleet,
)  # fmt: skip
