"""The fleet for people and programs: values, no live objects."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]


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
    start_seconds: Annotated[float, Meta(description="Predicted until a new request would start.")]


class FleetMemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A server of the fleet, as the one that is asked sees it."""

    object: Literal["fleet.member"] = "fleet.member"
    name: str
    role: Literal["node", "front"]
    state: Annotated[
        Literal["up", "draining", "silent"], Meta(description="silent: its reports do not come; a front sends none.")
    ]
    boot: Count
    version: str
    address: str
    report_seconds: Annotated[float | None, Meta(description="Age of its newest report; null: there is none.")]
    devices: list[FleetDeviceView]
    models: Annotated[list[FleetReplicaView], Meta(description="Those in memory.")]


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet, as the server that is asked sees it."""

    object: Literal["fleet"] = "fleet"
    name: str
    server: Annotated[str, Meta(description="The one that is asked.")]
    role: Literal["node", "front"]
    boot: Count
    certificate_ends: Annotated[str, Meta(description="UTC.")]
    is_joined: Annotated[bool, Meta(description="false: its lease could not be renewed lately.")]
    nodes: Count
    fronts: Count
    dropped_headers: Annotated[Count, Meta(description="Requests to the public port that spoke for others.")]
    ignored_reports: dict[str, int]
    members: list[FleetMemberView]
