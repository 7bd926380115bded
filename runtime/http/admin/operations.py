"""Health, readiness, metrics, status."""

from importlib.metadata import version as installed

from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from runtime.http.admin.answers import HealthView, json_answer
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.sending import Route
from tenants.caller import Scope


async def live() -> Response:
    """200 while the gateway's event loop answers."""
    return json_answer(HealthView("live"))


async def ready(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """200 once requests can be answered (models load on demand); 503 while starting or draining."""
    if gateway.phase == "ready":
        faults = gateway.adapters.faults if Scope.MODELS in context.caller.scopes else {}
        return json_answer(HealthView("ready", faults))
    return json_answer(HealthView(gateway.phase), 503, {"Retry-After": "1"})


async def version() -> Response:
    """The server's version, as vLLM tells its own."""
    return json_answer({"version": installed("roundhouse")})


async def metrics(gateway: CurrentGateway) -> Response:
    """Prometheus text."""
    gateway.elsewhere.measure()
    return Response(await gateway.overview.metrics(), media_type=CONTENT_TYPE_LATEST)


async def status(gateway: CurrentGateway) -> Response:
    """What is resident where, with bytes and last use."""
    return json_answer(gateway.overview.status())


ROUTES: list[Route] = [
    ("/health/live", live, ["GET"]),
    ("/health/ready", ready, ["GET"]),
    ("/health", ready, ["GET"]),
    ("/ping", ready, ["GET"]),
    ("/ping", ready, ["POST"]),
    ("/version", version, ["GET"]),
    ("/metrics", metrics, ["GET"]),
    ("/v1/status", status, ["GET"]),
]
