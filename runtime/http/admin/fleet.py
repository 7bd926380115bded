"""The fleet: members, draining, placement of models."""

from typing import TYPE_CHECKING, Annotated

from fastapi import Path, Query
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from registry.errors import NotFound
from runtime.gateway.core import Gateway
from runtime.gateway.views.fleet import FleetChoiceView, FleetPlanView, FleetSignalView, FleetView
from runtime.http.admin.bodies import json_answer
from runtime.http.admin.models import Name
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.route import RouteGroup
from runtime.http.schema import CONFLICT, MANAGEMENT
from tenants.caller import Scope

if TYPE_CHECKING:  # servers without a fleet do not import it
    from runtime.gateway.peers.service import Fleet

route = RouteGroup("Fleet")
Node = Annotated[str, Path(description="name of a server of the fleet")]


def _fleet(gateway: Gateway) -> "Fleet":
    fleet = gateway.services.fleet
    if fleet is None:
        raise NotFound("This server belongs to no fleet: start it with --fleet (docs/fleet.md).", code="no_fleet")
    return fleet


class PlacementBody(BaseModel):
    """A manual placement of a model."""

    model_config = ConfigDict(extra="forbid")
    replicas: int | None = Field(default=None, ge=0, le=10_000, strict=True, description="null: one on each of `on`")
    on: list[str] = Field(default_factory=list, max_length=1000, description="names of nodes")


@route("GET", "/v1/fleet", scope=Scope.MODELS, answer=FleetView, errors=MANAGEMENT)
async def get_fleet(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Show the fleet as this server sees it.

    Its members with their latest reports and clocks, the placement of models, shared limits, the last forwarded
    requests with the reason for their node, and what was refused.
    """
    return json_answer(_fleet(gateway).view(context.caller))


@route("POST", "/v1/fleet/nodes/{node}/drain", scope=Scope.ADMIN, answer=FleetView, errors=(*CONFLICT, 503))
async def drain_node(
    gateway: CurrentGateway, context: CurrentContext, node: Node, force: Annotated[bool, Query()] = False
) -> Response:
    """Stop sending requests of the fleet to a node.

    Running requests continue. The last node, and the last one with a pinned model in memory, is drained only with
    force=true.
    """
    return json_answer(await _fleet(gateway).drain(node, True, context.caller, force=force))


@route("POST", "/v1/fleet/nodes/{node}/undrain", scope=Scope.ADMIN, answer=FleetView, errors=(*MANAGEMENT, 503))
async def undrain_node(gateway: CurrentGateway, context: CurrentContext, node: Node) -> Response:
    """Resume sending requests of the fleet to a node."""
    return json_answer(await _fleet(gateway).drain(node, False, context.caller))


@route("GET", "/v1/fleet/plan", scope=Scope.MODELS, answer=FleetPlanView, errors=MANAGEMENT)
async def get_fleet_plan(gateway: CurrentGateway) -> Response:
    """Show the planned nodes of each model, and what a new plan would change.

    Uses the same function as the planner. Changes nothing.
    """
    return json_answer(_fleet(gateway).planning.plan())


@route("GET", "/v1/fleet/explain/{model:path}", scope=Scope.MODELS, answer=FleetChoiceView, errors=MANAGEMENT)
async def explain_fleet_choice(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Show to which node a request for a model or adapter would go now, and why.

    Ignores prefix caches, since there is no prompt.
    """
    return json_answer(_fleet(gateway).planning.explain(name, context.caller))


@route("GET", "/v1/fleet/signal", scope=Scope.MODELS, answer=FleetSignalView, errors=MANAGEMENT)
async def get_fleet_signal(gateway: CurrentGateway) -> Response:
    """Show how many nodes the current load needs.

    For autoscalers of nodes.
    """
    return json_answer(_fleet(gateway).planning.signal())


@route(
    "PUT",
    "/v1/fleet/placements/{model:path}",
    scope=Scope.ADMIN,
    answer=FleetPlanView,
    body=PlacementBody,
    errors=(*MANAGEMENT, 503),
)
async def place_model(gateway: CurrentGateway, name: Name, body: PlacementBody) -> Response:
    """Place a model by hand.

    Other models leave for it, except those placed by hand. The placement holds until it is released.
    """
    return json_answer(await _fleet(gateway).planning.place(name, body.replicas, tuple(dict.fromkeys(body.on))))


@route(
    "DELETE", "/v1/fleet/placements/{model:path}", scope=Scope.ADMIN, answer=FleetPlanView, errors=(*MANAGEMENT, 503)
)
async def release_model(gateway: CurrentGateway, name: Name) -> Response:
    """Return a manually placed model to automatic placement."""
    return json_answer(await _fleet(gateway).planning.release(name))
