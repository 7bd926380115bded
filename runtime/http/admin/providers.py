"""Providers: which there are, how they are, and whether one answers."""

from fastapi.responses import Response

from runtime.http.admin.answers import json_answer
from runtime.http.middleware import CurrentGateway
from runtime.http.sending import Route


async def list_(gateway: CurrentGateway) -> Response:
    """All providers, with the breaker of each model."""
    return json_answer(gateway.services.provider_models.views())


async def check(gateway: CurrentGateway, provider: str) -> Response:
    """Ask the provider for its models. Costs nothing there."""
    return json_answer(await gateway.services.provider_models.check(provider))


ROUTES: list[Route] = [
    ("/v1/providers", list_, ["GET"]),
    ("/v1/providers/{provider}/test", check, ["POST"]),
]
