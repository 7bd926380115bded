"""Models: OpenAI's list and retrieve, aliases, and residency by hand."""

from typing import Annotated

from fastapi import Path, Query
from fastapi.responses import Response

from runtime.http.admin.answers import json_answer
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.sending import Route

Name = Annotated[str, Path(alias="model", description="model id or alias")]


async def list_(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """All models, then all adapters, then what answers elsewhere, then routers, in OpenAI's list shape."""
    caller = context.caller
    cards = [
        *gateway.services.models.all(caller),
        *gateway.services.provider_models.cards(caller),
        *gateway.dispatcher.cards(caller),
    ]
    return json_answer({"object": "list", "data": cards})


async def show(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """One model or adapter, with the progress of a load that is under way."""
    if not name:  # /v1/models/
        return await list_(gateway, context)
    card = gateway.services.provider_models.card(name, context.caller) or gateway.dispatcher.card(name, context.caller)
    return json_answer(gateway.services.models.show(name, context.caller) if card is None else card)


async def load(gateway: CurrentGateway, name: Name, wait: Annotated[bool, Query()] = True) -> Response:
    """Bring the model in. With wait=false: 202 at once; ask /v1/models/{id} for the progress."""
    view = await gateway.services.models.load(name, wait=wait)
    return json_answer(view) if wait else json_answer(view, 202, {"Location": f"/v1/models/{view.id}"})


async def unload(gateway: CurrentGateway, name: Name, force: Annotated[bool, Query()] = False) -> Response:
    """Let the model leave: running requests finish first. A pinned one only with force=true."""
    return json_answer(await gateway.services.models.unload(name, force=force))


async def plan(gateway: CurrentGateway, name: Name) -> Response:
    """What a load would do now. Changes nothing."""
    return json_answer(gateway.services.models.plan(name))


async def pin(gateway: CurrentGateway, name: Name) -> Response:
    """Never evict this model. Does not load it."""
    return json_answer(await gateway.services.models.pin(name, True))


async def unpin(gateway: CurrentGateway, name: Name) -> Response:
    return json_answer(await gateway.services.models.pin(name, False))


async def forget_estimate(gateway: CurrentGateway, name: Name) -> Response:
    """Forget what loads of the model were measured to hold: the next plan is made with what its files tell."""
    return json_answer(await gateway.services.models.forget_estimate(name))


async def set_alias(gateway: CurrentGateway, name: Name, alias: str) -> Response:
    """A further name of the model, or one that moves to it from another model."""
    return json_answer(await gateway.services.models.set_alias(alias, name))


async def remove_alias(gateway: CurrentGateway, name: Name, alias: str) -> Response:
    """Remove an alias that was made by a call; those of recipes stay."""
    return json_answer(await gateway.services.models.remove_alias(alias, name))


ROUTES: list[Route] = [
    ("/v1/models", list_, ["GET"]),
    ("/v1/models/{model:path}/load", load, ["POST"]),
    ("/v1/models/{model:path}/unload", unload, ["POST"]),
    ("/v1/models/{model:path}/plan", plan, ["POST"]),
    ("/v1/models/{model:path}/pin", pin, ["PUT"]),
    ("/v1/models/{model:path}/pin", unpin, ["DELETE"]),
    ("/v1/models/{model:path}/estimate", forget_estimate, ["DELETE"]),
    ("/v1/models/{model:path}/aliases/{alias:path}", set_alias, ["PUT"]),
    ("/v1/models/{model:path}/aliases/{alias:path}", remove_alias, ["DELETE"]),
    ("/v1/models/{model:path}", show, ["GET"]),
]
