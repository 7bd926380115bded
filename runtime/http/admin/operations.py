"""Health, metrics, status and single requests."""

from contextlib import suppress
from functools import partial
from importlib.metadata import version as installed
from typing import Annotated

import msgspec
from fastapi import Header, Query
from fastapi.responses import Response

from console.history import LAST, RequestRow
from registry.base.wording import quoted
from registry.errors import NotFound, Unauthorized
from runtime.gateway.views.overview import StatusView
from runtime.gateway.views.signal import SignalListView
from runtime.http.admin.bodies import HealthView, json_answer
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.route import PUBLIC, RouteGroup
from runtime.http.schema import MANAGEMENT, STRING, TEXT, record
from tenants.caller import SCOPES, Scope
from tenants.ledger.lookup import LedgerRow

route = RouteGroup("Operations")
_readiness = partial(
    route, scope=PUBLIC, answer=HealthView, errors=(), others={503: ("Starting or stopping.", HealthView)}
)


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """record: from the last requests, in memory. ledger: a row for each attempt. Neither contains texts."""

    object: str = "request"
    id: str
    record: RequestRow | None
    ledger: list[LedgerRow]


@route("GET", "/health/live", scope=PUBLIC, answer=HealthView, errors=())
async def live() -> Response:
    """Liveness.

    200 while the gateway's event loop answers.
    """
    return json_answer(HealthView("live"))


@_readiness("GET", "/health/ready")
@_readiness("GET", "/health", id="health", summary="Readiness (vLLM, TGI)")
@_readiness("GET", "/ping", id="ping", summary="Readiness (SageMaker)")
@_readiness("POST", "/ping", id="pingByPost", summary="Readiness (SageMaker)")
async def ready(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Readiness.

    200 once requests can be answered (models load on demand). 503 while the server starts, drains, or cannot read keys
    or write the ledger. `degraded` names what does not work.
    """
    with suppress(Unauthorized):
        gateway.services.keyring().identify([])  # raises Unavailable if keys cannot be read
    if gateway.phase == "ready":
        faults = gateway.services.adapters.faults if Scope.MODELS in context.caller.scopes else {}
        degraded = gateway.degraded
        if not degraded:
            return json_answer(HealthView("ready", faults))
        refused = "ledger_unavailable" in degraded
        headers = {"Retry-After": "5"} if refused else None
        return json_answer(HealthView("degraded", faults, degraded), 503 if refused else 200, headers)
    return json_answer(HealthView(gateway.phase), 503, {"Retry-After": "1"})


@route("GET", "/version", scope=PUBLIC, answer=record({"version": STRING}), errors=())
async def version() -> Response:
    """The server's version, in vLLM's format."""
    return json_answer({"version": installed("roundhouse")})


@route("GET", "/metrics", scope=Scope.MODELS, answer=TEXT, errors=())
async def metrics(gateway: CurrentGateway, accept: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
    """Prometheus metrics.

    In Prometheus text format, or for clients that accept it in OpenMetrics, which has exemplars.
    """
    gateway.services.provider_models.measure()
    text, content_type = await gateway.services.overview.metrics(accept, gateway.faults)
    return Response(text, headers={"content-type": content_type})


@route("GET", "/v1/status", scope=Scope.MODELS, answer=StatusView, errors=())
async def status(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Show which models are resident where, with bytes and last use, and what does not work.

    Only keys with the scope 'admin' see the names of other teams' adapters.
    """
    operator = Scope.ADMIN in context.caller.scopes
    return json_answer(gateway.services.overview.status(None if operator else context.caller, gateway.degraded))


@route("GET", "/v1/signal", scope=Scope.MODELS, answer=SignalListView, errors=MANAGEMENT)
async def signal(gateway: CurrentGateway, model: Annotated[str | None, Query()] = None) -> Response:
    """Show how many replicas each model needs, for autoscalers.

    Includes waiting and arriving work, predicted waits and their goals, and the duration of a load. `model` selects one
    model.
    """
    return json_answer(await gateway.services.models.signals(model))


@route("GET", "/v1/requests/{request_id:path}", scope=SCOPES, answer=RequestView)
async def get_request(gateway: CurrentGateway, context: CurrentContext, request_id: str) -> Response:
    """Show everything known about one request.

    Where its time went, why it was routed there, and what it cost. A team sees only its own requests.
    """
    team = None if Scope.ADMIN in context.caller.scopes else context.caller.team
    row = gateway.services.console.history.find(request_id, team)
    ledger = await gateway.services.usage.of_request(team, request_id)
    if row is None and not ledger:
        raise NotFound(
            f"No request of yours is known as {quoted(request_id)}. Send the X-Request-Id of its answer: the last "
            f"{LAST:,} requests are kept, and those in the ledger.",
            code="request_not_found",
        )
    return json_answer(RequestView(id=request_id, record=row, ledger=ledger))
