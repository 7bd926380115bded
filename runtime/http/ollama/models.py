"""Ollama's calls for models: list, show, those in memory, `pull` and `delete`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing

import msgspec
from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from launch.request import HUB, OLLAMAS, TAGS, AddedModel, ModelRequest, Phase, parse_source, without_host
from registry.errors import BadRequest, Forbidden, NotFound, RoundhouseError
from registry.recipes.fields import PathSource
from runtime.gateway.core import Gateway
from runtime.gateway.names import LATEST
from runtime.gateway.views.values import AdapterCardView, ModelView
from runtime.http import errors as http_errors
from runtime.http.admin.bodies import json_answer
from runtime.http.bodies import T, decode, read_body
from runtime.http.dialect import JSON, NDJSON, NO_BUFFERING
from runtime.http.errors import Dialect
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.ollama.bodies import OllamaNameBody, OllamaPullBody
from runtime.http.ollama.views import (
    TASKS,
    OllamaLoaded,
    OllamaModelInfo,
    OllamaTags,
    digest,
    is_loaded,
    loaded_entry,
    model_entry,
    model_info,
    router_entry,
    router_info,
)
from runtime.http.route import PUBLIC, RouteGroup
from runtime.http.schema import CONFLICT
from tenants.caller import SCOPES, Caller, Scope

route = RouteGroup("Ollama", (Dialect.OLLAMA,))

API = "0.14.0"
"""The version of Ollama whose API this is, by which clients decide what to send. Ours is at /version.

Codex needs 0.13.4, the first with Responses; 0.14.0 is the first with Anthropic's messages.
"""
PHASES: Mapping[Phase, str] = {
    "looking": "pulling manifest",
    "waiting": "waiting for the model of this name to leave",
    "added": "writing manifest",
    "converting": "converting to CTranslate2's format",
}


class OllamaVersion(msgspec.Struct):
    version: str


class OllamaStatus(msgspec.Struct, omit_defaults=True):
    """The progress of a pull."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


@route("GET", "/api/tags", scope=SCOPES, answer=OllamaTags, errors=())
async def ollama_tags(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """List models, adapters and routers that Ollama's clients can use."""
    models, build, team = gateway.services.models, gateway.services.lists.build, context.caller.team
    views = (view for view in models.all(context.caller) if view.task in TASKS)
    lookups = await build(team, ((view, base_model(view), models.facts(base_model(view))) for view in views))
    by_base = {base: read for _, base, read in lookups}
    facts = await asyncio.to_thread(lambda: {base: read() for base, read in by_base.items()})
    entries = await build(team, (model_entry(view, facts[base]) for view, base, _ in lookups))
    routers = [router_entry(card) for card in gateway.dispatcher.cards(context.caller) if card.task in TASKS]
    return json_answer(OllamaTags([*entries, *routers]))


@route("GET", "/api/ps", scope=SCOPES, answer=OllamaLoaded, errors=())
async def ollama_ps(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """List models in memory."""
    seen = [view for view in gateway.services.models.views() if context.caller.sees(view.id)]
    views = [view for view in seen if view.task in TASKS and is_loaded(view)]
    lookups = [(view, gateway.services.models.facts(view.id)) for view in views]
    entries = await asyncio.to_thread(lambda: [loaded_entry(view, facts()) for view, facts in lookups])
    return json_answer(OllamaLoaded(entries))


@route("POST", "/api/show", scope=SCOPES, answer=OllamaModelInfo, body=OllamaNameBody, errors=(*CONFLICT, 413))
async def ollama_show(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Show a model or an adapter, and what it can do."""
    name = (await _read(request, gateway, OllamaNameBody)).required_name
    if (router := gateway.dispatcher.card(name.removesuffix(LATEST), context.caller)) is not None:
        return json_answer(router_info(router, gateway.dispatcher.context_length(router, context.caller)))
    view = gateway.services.models.show(name, context.caller)
    return json_answer(model_info(view, await asyncio.to_thread(gateway.services.models.facts(base_model(view)))))


@route("GET", "/api/version", scope=PUBLIC, answer=OllamaVersion, errors=())
async def ollama_version() -> Response:
    """Show the version of Ollama whose API this is."""
    return json_answer(OllamaVersion(API))


@route(
    "POST",
    "/api/pull",
    scope=Scope.MODELS,
    answer={NDJSON: OllamaStatus, JSON: OllamaStatus},
    body=OllamaPullBody,
    errors=(*CONFLICT, 413),
)
async def ollama_pull(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Download a model from a hub and serve it.

    A model that exists already is reported as such.
    """
    body = await _read(request, gateway, OllamaPullBody)
    statuses = _statuses(gateway, body.required_name, context.caller)
    if body.stream is False:
        return json_answer([status async for status in statuses][-1])
    return StreamingResponse(_lines(statuses), headers=NO_BUFFERING, media_type=NDJSON)


def _statuses(gateway: Gateway, name: str, caller: Caller) -> AsyncGenerator[OllamaStatus, None]:
    """Yield the statuses of a pull. Raises BadRequest for a name that is neither known nor a hub repository."""
    try:
        return _is_here(gateway, gateway.services.models.show(name, caller))
    except NotFound as missing:
        repository = without_host(gateway.services.models.untagged(name, caller))
        try:
            source = parse_source(repository)
        except BadRequest:
            advice = f"A model of a hub is called org/name, such as Qwen/Qwen3-0.6B. {OLLAMAS}"
            if HUB.match(repository.partition(":")[0]):
                advice = TAGS
            raise BadRequest(f"{missing.message} {advice}", param="model") from None
        if isinstance(source, PathSource):
            raise BadRequest("Folders are added with 'roundhouse models add', not pulled.", param="model") from None
        return _added(gateway, ModelRequest(repository, team=caller.team))


async def _is_here(gateway: Gateway, view: ModelView | AdapterCardView) -> AsyncGenerator[OllamaStatus, None]:
    size = (await asyncio.to_thread(gateway.services.models.facts(base_model(view)))).bytes
    yield OllamaStatus("pulling manifest")
    yield OllamaStatus(f"pulling {digest(view)[:12]}", digest(view), size, size)
    yield OllamaStatus("verifying sha256 digest")
    yield OllamaStatus("success")


async def _added(gateway: Gateway, request: ModelRequest) -> AsyncGenerator[OllamaStatus, None]:
    async with aclosing(gateway.services.additions.add(request)) as steps:
        async for step in steps:
            if isinstance(step, AddedModel):
                yield OllamaStatus("success")
            elif step.phase == "fetching":
                yield OllamaStatus(f"pulling {step.model}", step.model, step.total or 0, step.completed)
            else:
                yield OllamaStatus(PHASES[step.phase])


async def _lines(statuses: AsyncGenerator[OllamaStatus, None]) -> AsyncIterator[bytes]:
    """Write statuses as lines. As in Ollama, an error is the last line, since the status line was sent."""
    try:
        async with aclosing(statuses):
            async for status in statuses:
                yield msgspec.json.encode(status) + b"\n"
    except RoundhouseError as error:
        yield http_errors.sse(error, Dialect.OLLAMA)


@route(
    "DELETE",
    "/api/delete",
    scope=(Scope.ADAPTERS, Scope.MODELS),
    answer=OllamaStatus,
    body=OllamaNameBody,
    errors=(*CONFLICT, 413),
)
async def ollama_delete(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Remove an adapter, one version of it, or a model that was added."""
    name = (await _read(request, gateway, OllamaNameBody)).required_name
    view = gateway.services.models.show(name, context.caller)
    scope = Scope.ADAPTERS if isinstance(view, AdapterCardView) else Scope.MODELS
    if scope not in context.caller.scopes:
        raise Forbidden(
            f"This key may not remove '{view.id}': it needs the scope '{scope}'.", code="insufficient_scope"
        )
    if isinstance(view, AdapterCardView):
        _, _, version = gateway.services.models.untagged(name, context.caller).partition("@")
        await gateway.services.adapters.remove(view.root, version or None, context.caller)
    else:
        await gateway.services.editor.remove(view.id)
    return json_answer(OllamaStatus("success"))


def base_model(view: ModelView | AdapterCardView) -> str:
    """The id of the model whose files a model or adapter uses."""
    return view.parent if isinstance(view, AdapterCardView) else view.id


async def _read(request: Request, gateway: Gateway, kind: type[T]) -> T:
    return decode(await read_body(request, gateway.services.settings.max_json), kind)
