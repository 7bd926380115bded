"""The fleet that this server belongs to: its members, and which of them get new requests."""

from typing import TYPE_CHECKING, Annotated

from fastapi import Path, Query
from fastapi.responses import Response

from registry.errors import NotFound
from runtime.gateway.core import Gateway
from runtime.gateway.views.fleet import FleetView
from runtime.http.admin.answers import json_answer
from runtime.http.middleware import CurrentGateway
from runtime.http.route import RouteGroup
from runtime.http.schema import CONFLICT, MANAGEMENT
from tenants.caller import Scope

if TYPE_CHECKING:  # a server without a fleet loads nothing of it
    from runtime.gateway.peers.service import Fleet

route = RouteGroup("Fleet")
Node = Annotated[str, Path(description="name of a server of the fleet")]


def _fleet(gateway: Gateway) -> "Fleet":
    fleet = gateway.services.fleet
    if fleet is None:
        raise NotFound("This server belongs to no fleet: start it with --fleet (docs/fleet.md).", code="no_fleet")
    return fleet


@route("GET", "/v1/fleet", scope=Scope.MODELS, answer=FleetView, errors=MANAGEMENT)
async def get_fleet(gateway: CurrentGateway) -> Response:
    """Show the fleet as this server sees it.

    Its members with their newest reports, and what was refused.
    """
    return json_answer(_fleet(gateway).view())


@route("POST", "/v1/fleet/nodes/{node}/drain", scope=Scope.ADMIN, answer=FleetView, errors=(*CONFLICT, 503))
async def drain_node(gateway: CurrentGateway, node: Node, force: Annotated[bool, Query()] = False) -> Response:
    """Send a node no new requests of the fleet.

    Those that run there go on. The last node is drained only with force=true.
    """
    return json_answer(await _fleet(gateway).drain(node, True, force=force))


@route("POST", "/v1/fleet/nodes/{node}/undrain", scope=Scope.ADMIN, answer=FleetView, errors=(*MANAGEMENT, 503))
async def undrain_node(gateway: CurrentGateway, node: Node) -> Response:
    """Send a node requests of the fleet again."""
    return json_answer(await _fleet(gateway).drain(node, False))
