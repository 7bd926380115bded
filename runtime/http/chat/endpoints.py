"""The chat family: vLLM's own application answers; the gateway resolves `model`, leases, and passes bytes on."""

from contextlib import AsyncExitStack
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response
from starlette.types import Send

from models.messages import HttpCall
from registry.errors import BadRequest, RoundhouseError
from registry.recipes.definition import Task
from runtime.gateway.core import Chosen, Gateway
from runtime.gateway.prefer import PREFERENCE
from runtime.http.chat.bounds import check_size
from runtime.http.chat.progress import progress_stream
from runtime.http.errors import Dialect
from runtime.http.relay import relay, serving
from runtime.http.working import Working, error_response, parse_object, read_body

PATHS: dict[str, Dialect] = {
    "/v1/chat/completions": Dialect.OPENAI,
    "/v1/completions": Dialect.OPENAI,
    "/v1/responses": Dialect.OPENAI,
    "/v1/messages": Dialect.ANTHROPIC,
    "/v1/messages/count_tokens": Dialect.ANTHROPIC,
    "/tokenize": Dialect.OPENAI,
    "/detokenize": Dialect.OPENAI,
}


class ChatEndpoints:
    """One handler for all of vLLM's paths."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def handle(self, request: Request) -> Response:
        path = request.url.path
        dialect = PATHS[path]
        try:
            body = await read_body(request, self.gateway.settings.max_json)
            check_size(body, [recipe for recipe in self.gateway.recipes if recipe.task is Task.CHAT])
            data = parse_object(body)
            adapter = data.pop("adapter_id", None)  # LoRAX's way to name one
            if adapter is not None and not isinstance(adapter, str):
                raise BadRequest("'adapter_id' must be a string.", param="adapter_id")
            chosen = self.gateway.choose(data.get("model"), Task.CHAT, adapter=adapter)
            check_size(body, [chosen.entry.recipe])
        except RoundhouseError as error:
            return error_response(error, dialect)

        async def work(send: Send) -> None:
            async with AsyncExitStack() as stack:
                if data.get("stream") is True and PREFERENCE.get().progress and not chosen.entry.is_ready:
                    send = await stack.enter_async_context(progress_stream(chosen.entry, send, dialect))
                entered = serving(self.gateway, chosen, path, lambda: http_call(path, data, chosen))
                served, call = await stack.enter_async_context(entered)
                await relay(served, call, send, dialect)

        return Working(work, dialect)


def http_call(path: str, data: dict[str, Any], chosen: Chosen) -> HttpCall:
    """The client's body under the engine's own name for the weights."""
    served = chosen.adapter.digest if chosen.adapter else chosen.entry.id
    return HttpCall(
        path=path,
        body=msgspec.json.encode({**data, "model": served}),
        served=served,
        shown=chosen.name,
        adapter=chosen.ref,
    )
