"""Providers: their documents, breakers, and whether they answer."""

from typing import Annotated

import msgspec
from fastapi import Path, Request
from fastapi.responses import Response

from runtime.gateway.providers.store import ProviderDefinitionView
from runtime.gateway.providers.views import ProviderCheckView, ProviderListView
from runtime.http.admin.bodies import json_answer
from runtime.http.bodies import parse_object, read_body
from runtime.http.middleware import CurrentGateway
from runtime.http.route import RouteGroup
from runtime.http.schema import CONFLICT
from tenants.caller import Scope

route = RouteGroup("Operations")
Name = Annotated[str, Path(alias="provider", description="provider's id")]


class ProviderDeletedView(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "provider.deleted"
    id: str
    deleted: bool = True


@route("GET", "/v1/providers", scope=Scope.MODELS, answer=ProviderListView, errors=())
async def list_providers(gateway: CurrentGateway) -> Response:
    """List providers, with the breaker of each model."""
    return json_answer(gateway.services.provider_models.views())


@route("GET", "/v1/providers/{provider}", scope=Scope.ADMIN, answer=ProviderDefinitionView)
async def get_provider(gateway: CurrentGateway, provider: Name) -> Response:
    """Show a provider's document."""
    return json_answer(gateway.services.provider_store.show(provider))


@route(
    "PUT",
    "/v1/providers/{provider}",
    scope=Scope.ADMIN,
    answer=ProviderDefinitionView,
    body={"type": "object"},
    errors=(*CONFLICT, 422, 503),
    others={201: ("It is new.", ProviderDefinitionView)},
    examples={
        "anthropic": {
            "protocol": "anthropic",
            "base_url": "https://api.anthropic.com/v1",
            "key_env": "ANTHROPIC_API_KEY",
            "models": [{"name": "claude-haiku-4-5", "aliases": ["haiku"]}],
        }
    },
)
async def put_provider(request: Request, gateway: CurrentGateway, provider: Name) -> Response:
    """Add or replace a provider.

    The body is a document as in recipe files, without `kind`, `id` and `version`. It takes effect at once, and running
    requests continue. Providers from recipe files can only be changed in those files.
    """
    data = parse_object(await read_body(request, gateway.services.settings.max_json))
    view, is_new = await gateway.services.provider_store.put(
        provider, {key: value for key, value in data.items() if key not in ("kind", "id", "version")}
    )
    return json_answer(view, 201 if is_new else 200, {"Location": f"/v1/providers/{provider}"})


@route("DELETE", "/v1/providers/{provider}", scope=Scope.ADMIN, answer=ProviderDeletedView, errors=CONFLICT)
async def remove_provider(gateway: CurrentGateway, provider: Name) -> Response:
    """Remove a provider that was added."""
    await gateway.services.provider_store.remove(provider)
    return json_answer(ProviderDeletedView(id=provider))


@route("POST", "/v1/providers/{provider}/test", scope=Scope.MODELS, answer=ProviderCheckView)
async def test_provider(gateway: CurrentGateway, provider: Name) -> Response:
    """Test whether a provider answers.

    Requests the provider's list of models, which costs nothing.
    """
    return json_answer(await gateway.services.provider_models.check(provider))
