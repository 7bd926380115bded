"""Ollama's list of models, what it shows of one, what is in memory, and `pull` and `delete`."""

import asyncio
from collections.abc import Iterator

import msgspec
from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from registry.errors import BadRequest
from runtime.gateway.core import Gateway
from runtime.gateway.views import AdapterCardView, ModelView
from runtime.http.admin.answers import json_answer
from runtime.http.bodies import T, decode, read_body
from runtime.http.dialect import NDJSON
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.ollama.bodies import OllamaNameBody, OllamaPullBody
from runtime.http.ollama.views import TASKS, OllamaLoaded, OllamaTags, digest, is_loaded, listed, loaded, shown
from runtime.http.sending import Route
from tenants.caller import Caller

API = "0.12.6"
"""The version of Ollama whose interface this is: clients decide by it what they may send. Ours is at /version."""


class OllamaVersion(msgspec.Struct):
    version: str


class OllamaStatus(msgspec.Struct, omit_defaults=True):
    """How far a pull is."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


async def tags(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Chat and embedding models, and adapters: what Ollama's clients can ask for."""
    views = [view for view in gateway.models.all(context.caller) if view.task in TASKS]
    found = await asyncio.to_thread(lambda: [listed(view, gateway.models.facts(base(view))) for view in views])
    return json_answer(OllamaTags(found))


async def ps(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Models in memory."""
    seen = [view for view in gateway.models.views() if context.caller.sees(view.id)]
    views = [view for view in seen if view.task in TASKS and is_loaded(view)]
    found = await asyncio.to_thread(lambda: [loaded(view, gateway.models.facts(view.id)) for view in views])
    return json_answer(OllamaLoaded(found))


async def show(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """What is known of a model or an adapter, and what it can do."""
    view = find(gateway, (await _read(request, gateway, OllamaNameBody)).wanted, context.caller)
    return json_answer(await asyncio.to_thread(lambda: shown(view, gateway.models.facts(base(view)))))


async def version() -> Response:
    """The version of Ollama whose interface this is."""
    return json_answer(OllamaVersion(API))


async def pull(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """A model that is here is told to be here."""
    asked = await _read(request, gateway, OllamaPullBody)
    view = find(gateway, asked.wanted, context.caller)
    if asked.stream is False:
        return json_answer(OllamaStatus("success"))
    facts = await asyncio.to_thread(lambda: gateway.models.facts(base(view)))
    return StreamingResponse(_lines(digest(view), facts.bytes), media_type=NDJSON)


def _lines(found: str, size: int) -> Iterator[bytes]:
    for status in (
        OllamaStatus("pulling manifest"),
        OllamaStatus(f"pulling {found[:12]}", found, size, size),
        OllamaStatus("verifying sha256 digest"),
        OllamaStatus("writing manifest"),
        OllamaStatus("success"),
    ):
        yield msgspec.json.encode(status) + b"\n"


async def delete(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Remove an adapter."""
    name = (await _read(request, gateway, OllamaNameBody)).wanted
    view = find(gateway, name, context.caller)
    if not isinstance(view, AdapterCardView):
        raise BadRequest(
            f"'{view.id}' is a model of the server's recipes: it goes with its recipe file. Only adapters are "
            "removed by a call.",
            code="unsupported_value",
            param="model",
        )
    await gateway.adapters.remove(view.root)
    return json_answer(OllamaStatus("success"))


def find(gateway: Gateway, name: str, caller: Caller) -> ModelView | AdapterCardView:
    """Raises NotFound, Forbidden. `name:latest` means `name`."""
    return gateway.models.show(gateway.models.untagged(name), caller)


def base(view: ModelView | AdapterCardView) -> str:
    """The model whose files it is made of."""
    return view.parent if isinstance(view, AdapterCardView) else view.id


async def _read(request: Request, gateway: Gateway, kind: type[T]) -> T:
    return decode(await read_body(request, gateway.settings.max_json), kind)


ROUTES: list[Route] = [
    ("/api/tags", tags, ["GET"]),
    ("/api/ps", ps, ["GET"]),
    ("/api/show", show, ["POST"]),
    ("/api/version", version, ["GET"]),
    ("/api/pull", pull, ["POST"]),
    ("/api/delete", delete, ["DELETE"]),
]
