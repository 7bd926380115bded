"""Health, readiness, metrics, status."""

from contextlib import suppress
from importlib.metadata import version as installed
from typing import Annotated

from fastapi import Header
from fastapi.responses import Response

from registry.errors import Unauthorized
from runtime.http.admin.answers import HealthView, json_answer
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.sending import Route
from tenants.caller import Scope


async def live() -> Response:
    """200 while the gateway's event loop answers."""
    return json_answer(HealthView("live"))


async def ready(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """200 once requests can be answered (models load on demand); 503 while it starts, drains or cannot read keys."""
    with suppress(Unauthorized):
        gateway.services.callers.identify([])  # raises Unavailable
    if gateway.phase == "ready":
        faults = gateway.services.adapters.faults if Scope.MODELS in context.caller.scopes else {}
        return json_answer(HealthView("ready", faults))
    return json_answer(HealthView(gateway.phase), 503, {"Retry-After": "1"})


async def version() -> Response:
    """The server's version, as vLLM tells its own."""
    return json_answer({"version": installed("roundhouse")})


async def cluster_auth(gateway: CurrentGateway) -> Response:
    """Whether a key has to be shown, which Xinference's clients ask before they show one."""
    try:
        gateway.services.callers.identify([])
    except Unauthorized:
        return json_answer({"auth": True})
    return json_answer({"auth": False})


async def metrics(gateway: CurrentGateway, accept: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
    """Prometheus text; OpenMetrics, which has exemplars, to who takes that."""
    gateway.services.provider_models.measure()
    text, content_type = await gateway.services.overview.metrics(accept)
    return Response(text, headers={"content-type": content_type})


async def status(gateway: CurrentGateway) -> Response:
    """What is resident where, with bytes and last use."""
    return json_answer(gateway.services.overview.status())


ROUTES: list[Route] = [
    ("/health/live", live, ["GET"]),
    ("/health/ready", ready, ["GET"]),
    ("/health", ready, ["GET"]),
    ("/infinity/health", ready, ["GET"]),
    ("/ping", ready, ["GET"]),
    ("/ping", ready, ["POST"]),
    ("/version", version, ["GET"]),
    ("/v1/cluster/auth", cluster_auth, ["GET"]),
    ("/metrics", metrics, ["GET"]),
    ("/v1/status", status, ["GET"]),
]
