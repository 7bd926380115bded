"""Views of the fleet: values without live objects."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from runtime.gateway.views.values import Count

FleetMemberState = Literal["up", "late", "draining", "silent"]


class FleetDeviceView(msgspec.Struct, frozen=True):
    device: str
    label: str
    budget_bytes: Count
    used_bytes: Count


class FleetReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    revision: str
    state: str
    ready: Count
    running: Count
    waiting: Count
    start_seconds: Annotated[float, Meta(description="Predicted seconds until a new request would start.")]


class FleetMemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A server of the fleet, as the one that is asked sees it."""

    object: Literal["fleet.member"] = "fleet.member"
    name: str
    role: Literal["node", "front"]
    state: Annotated[
        FleetMemberState,
        Meta(
            description="late: its answers began late, so others get its requests for a while; silent: its reports do "
            "not come; a front sends none."
        ),
    ]
    boot: Count
    version: str
    address: str
    report_seconds: Annotated[float | None, Meta(description="Age of its newest report; null: there is none.")]
    lease_seconds: Annotated[
        float, Meta(description="Seconds until its name is free, unless it renews its lease before.")
    ]
    certificate_seconds: Annotated[
        int | None, Meta(description="Seconds until its certificate ends; null: not known, as for other fronts.")
    ]
    clock_offset_seconds: Annotated[
        float | None,
        Meta(description="Seconds by which its clock is ahead of the database's; null: not known, as for fronts."),
    ]
    is_clock_off: Annotated[bool, Meta(description="Its clock is wrong by more than 5 seconds.")]
    devices: list[FleetDeviceView]
    models: Annotated[list[FleetReplicaView], Meta(description="Those in memory.")]


class FleetBlockView(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that the servers share, as this one has taken of it."""

    id: str
    limit: Annotated[str, Meta(description="What is limited, and whose it is.")]
    amount: float
    left: Annotated[float, Meta(description="What no server has taken, and what is unused here.")]
    here: Annotated[float, Meta(description="What is unused here.")]
    seconds: Annotated[float, Meta(ge=0, description="Seconds until all of it is there again.")]


class FleetPassedView(msgspec.Struct, frozen=True, kw_only=True):
    """A request that this server passed on, and why it went there."""

    at: float
    id: str
    team: str
    model: str
    adapter: str
    node: str
    attempt: Count
    reason: Annotated[str, Meta(description="As in GET /v1/fleet/explain; left: the better nodes had been tried.")]


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet, as the server that is asked sees it."""

    object: Literal["fleet"] = "fleet"
    name: str
    server: Annotated[str, Meta(description="The one that is asked.")]
    role: Literal["node", "front"]
    boot: Count
    certificate_ends: Annotated[str, Meta(description="UTC; empty: the fleet has a key, no certificates.")]
    is_joined: Annotated[bool, Meta(description="false: its lease could not be renewed lately.")]
    nodes: Count
    fronts: Count
    dropped_headers: Annotated[Count, Meta(description="Requests to the public port that spoke for others.")]
    ignored_reports: dict[str, int]
    epoch: Annotated[int, Meta(ge=0, description="Epoch of the newest list of desired replicas; 0: there is none.")] = 0
    is_followed: Annotated[bool, Meta(description="false: the list is older than one that was seen.")] = True
    desired: Annotated[dict[str, list[str]], Meta(description="Nodes that are to hold each model.")] = {}
    blocks: Annotated[list[FleetBlockView], Meta(description="Shared limits; only for the scope 'admin'.")] = []
    passed: Annotated[
        list[FleetPassedView],
        Meta(description="The last requests that this server passed on, newest first: the team's, or all for 'admin'."),
    ] = []
    members: list[FleetMemberView]


class FleetMoveView(msgspec.Struct, frozen=True):
    model: str
    node: str
    action: Literal["load", "unload"]
    why: Annotated[str, Meta(description="hand, least, demand; room: another model needs it.")]


class FleetPlacementView(msgspec.Struct, frozen=True, kw_only=True):
    """A model, over all nodes."""

    model: str
    nodes: Annotated[list[str], Meta(description="Nodes that are to hold it.")]
    ready: Annotated[list[str], Meta(description="Nodes where it is ready.")]
    bytes: Annotated[int, Meta(ge=0, description="Bytes on each of its devices.")]
    demand: Annotated[float, Meta(description="Replicas that would be busy all the time.")]
    replicas: Annotated[int | None, Meta(description="Replicas placed by hand; null: as demand needs.")]
    on: Annotated[list[str], Meta(description="Nodes named by hand.")]
    unplaced: Annotated[str | None, Meta(description="Why it has fewer replicas than it is to have.")]
    problems: Annotated[dict[str, str], Meta(description="Nodes that cannot load it, and why.")] = {}


class FleetPlanView(msgspec.Struct, frozen=True, kw_only=True):
    """The planned nodes of each model."""

    object: Literal["fleet.plan"] = "fleet.plan"
    epoch: Annotated[int, Meta(ge=0, description="Epoch of the newest list; 0: nothing has been placed yet.")]
    is_followed: Annotated[bool, Meta(description="false: the database is in an older state than seen before.")]
    is_leading: Annotated[bool, Meta(description="Whether this server plans.")]
    models: list[FleetPlacementView]
    moves: Annotated[list[FleetMoveView], Meta(description="What a plan would change now.")]


class FleetCandidateView(msgspec.Struct, frozen=True):
    node: str
    start_seconds: Annotated[float, Meta(description="Predicted seconds until a request's turn.")]
    adapter_seconds: Annotated[float, Meta(description="Seconds until its adapter has a place.")]
    work: Annotated[float, Meta(description="Requests that run and wait there.")]


class FleetChoiceView(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that a request for a name would get now."""

    object: Literal["fleet.choice"] = "fleet.choice"
    model: str
    adapter: str | None
    revision: str
    digest: Annotated[str | None, Meta(description="The adapter's digest.")]
    nodes: Annotated[list[str], Meta(description="Nodes that have exactly these weights.")]
    tries: Annotated[list[str], Meta(description="The nodes that get it: the first, and the one if that fails.")]
    reason: str
    candidates: Annotated[list[FleetCandidateView], Meta(description="The replicas that were compared.")]


class FleetModelSignalView(msgspec.Struct, frozen=True):
    model: str
    ready: Count
    demand: float
    needed: Annotated[int, Meta(ge=0, description="Replicas that would bring each to the load that is aimed at.")]


class FleetSignalView(msgspec.Struct, frozen=True, kw_only=True):
    """The number of nodes that the present work needs, for autoscalers of nodes."""

    object: Literal["fleet.signal"] = "fleet.signal"
    nodes: Annotated[int, Meta(ge=0, description="Nodes that report and are not drained.")]
    needed_nodes: Annotated[int, Meta(ge=0, description="Nodes for all models together; at least one.")]
    models: list[FleetModelSignalView]
