"""Models: OpenAI's list and retrieve calls, aliases, and manual loading."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from fastapi import Path, Query, Request
from fastapi.responses import Response

from registry.base.wording import rfc3339
from runtime.gateway.core import Gateway
from runtime.gateway.providers.views import ProviderCardView
from runtime.gateway.routing.dispatcher import RouterCardView
from runtime.gateway.views.values import AdapterCardView, ModelView, PlanView
from runtime.http.admin.bodies import json_answer
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.route import RouteGroup
from runtime.http.schema import CONFLICT, MANAGEMENT, array, component, record, schema_of
from tenants.caller import SCOPES, Caller, Scope

route = RouteGroup("Models")
ANTHROPIC = "anthropic-version"
"""A header that all of Anthropic's clients send."""
Card = ModelView | AdapterCardView | ProviderCardView | RouterCardView
CARDS = (ModelView, AdapterCardView, ProviderCardView, RouterCardView)
LIST = component("ModelList", record({"object": {"const": "list"}, "data": array(schema_of(CARDS))}))

Name = Annotated[str, Path(alias="model", description="model id or alias")]


@route("GET", "/v1/models", scope=SCOPES, answer=LIST, errors=())
async def list_models(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """List models, adapters and routers.

    Lists models, then adapters, then models of providers, then routers, in OpenAI's format, to which a client of
    Anthropic gets the fields of Anthropic's.
    """
    cards = await gateway.services.lists.build(context.caller.team, _cards(gateway, context.caller))
    if ANTHROPIC in request.headers:
        ends = {"first_id": cards[0].id, "last_id": cards[-1].id} if cards else {"first_id": None, "last_id": None}
        return json_answer({"object": "list", "data": [_named(card) for card in cards], "has_more": False, **ends})
    return json_answer({"object": "list", "data": cards})


def _named(card: Card) -> dict[str, Any]:
    """Return a card with the fields that Anthropic's clients show and sort by."""
    named = {"type": "model", "display_name": card.id, "created_at": rfc3339(card.created)}
    return {**msgspec.to_builtins(card), **named}


def _cards(gateway: Gateway, caller: Caller) -> Iterator[Card]:
    services = gateway.services
    yield from services.models.all(caller)
    if services.fleet is not None:
        yield from services.fleet.cards.all(caller)
    yield from services.provider_models.cards(caller)
    yield from gateway.dispatcher.cards(caller)


@route("GET", "/v1/models/{model:path}", scope=SCOPES, answer=CARDS)
async def get_model(request: Request, gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Show a model, adapter or router.

    Includes the progress of a running load.
    """
    if not name:  # /v1/models/
        return await list_models(request, gateway, context)
    card: Card | None
    card = gateway.services.provider_models.card(name, context.caller) or gateway.dispatcher.card(name, context.caller)
    if card is None and gateway.services.fleet is not None:
        card = gateway.services.fleet.cards.find(name, context.caller)
    if card is None:
        card = gateway.services.models.show(name, context.caller)
    return json_answer(_named(card) if ANTHROPIC in request.headers else card)


@route(
    "POST",
    "/v1/models/{model:path}/load",
    scope=Scope.MODELS,
    answer=ModelView,
    errors=(*CONFLICT, 429, 500, 503),
    others={202: ("With `wait=false`: the load has begun; Location tells where to look.", ModelView)},
)
async def load_model(gateway: CurrentGateway, name: Name, wait: Annotated[bool, Query()] = True) -> Response:
    """Load a model.

    With wait=false it returns 202 at once, and GET /v1/models/{id} shows the progress.
    """
    view = await gateway.services.models.load(name, wait=wait)
    return json_answer(view) if wait else json_answer(view, 202, {"Location": f"/v1/models/{view.id}"})


@route("POST", "/v1/models/{model:path}/unload", scope=Scope.MODELS, answer=ModelView, errors=(*CONFLICT, 500, 503))
async def unload_model(gateway: CurrentGateway, name: Name, force: Annotated[bool, Query()] = False) -> Response:
    """Unload a model.

    Running requests finish first. A load that no request waits for is stopped. A pinned model is unloaded only with
    force=true.
    """
    return json_answer(await gateway.services.models.unload(name, force=force))


@route("POST", "/v1/models/{model:path}/plan", scope=Scope.MODELS, answer=PlanView, errors=(*MANAGEMENT, 503))
async def plan_load(gateway: CurrentGateway, name: Name) -> Response:
    """Show what a load would do now, without changing anything."""
    return json_answer(gateway.services.models.plan(name))


@route("PUT", "/v1/models/{model:path}/pin", scope=Scope.MODELS, answer=ModelView, errors=CONFLICT)
async def pin_model(gateway: CurrentGateway, name: Name) -> Response:
    """Pin a model.

    A pinned model is never evicted. Pinning does not load it.
    """
    return json_answer(await gateway.services.models.pin(name, True))


@route("DELETE", "/v1/models/{model:path}/pin", scope=Scope.MODELS, answer=ModelView, errors=CONFLICT)
async def unpin_model(gateway: CurrentGateway, name: Name) -> Response:
    """Unpin a model."""
    return json_answer(await gateway.services.models.pin(name, False))


@route("DELETE", "/v1/models/{model:path}/estimate", scope=Scope.MODELS, answer=ModelView, errors=(*MANAGEMENT, 503))
async def forget_estimate(gateway: CurrentGateway, name: Name) -> Response:
    """Forget the measured size of a model.

    The next plan uses the estimate from its files.
    """
    return json_answer(await gateway.services.models.forget_estimate(name))


@route("PUT", "/v1/models/{model:path}/aliases/{alias:path}", scope=Scope.MODELS, answer=ModelView, errors=CONFLICT)
async def set_model_alias(gateway: CurrentGateway, name: Name, alias: str) -> Response:
    """Point an alias at a model.

    The alias may be new or belong to another model, from which it is moved.
    """
    return json_answer(await gateway.services.models.set_alias(alias, name))


@route("DELETE", "/v1/models/{model:path}/aliases/{alias:path}", scope=Scope.MODELS, answer=ModelView)
async def delete_model_alias(gateway: CurrentGateway, name: Name, alias: str) -> Response:
    """Remove an alias of a model.

    Only aliases that were added by a call can be removed, not those of recipes.
    """
    return json_answer(await gateway.services.models.remove_alias(alias, name))
