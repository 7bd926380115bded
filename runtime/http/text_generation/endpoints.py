"""Text generation as Text Generation Inference and LoRAX have it, over vLLM's completions.

| path             | answer                | with `stream: true` | return_full_text by default |
|------------------|-----------------------|---------------------|-----------------------------|
| /generate        | an object             | a stream            | false                       |
| /generate_stream | a stream              | a stream            | false                       |
| /                | a list of one object  | a stream            | true                        |

The model is `?model=` or `model` in the body, else the only chat model. `parameters.adapter_id` names an adapter of it,
or, where no model is named and there are several, an adapter by itself. Errors are `error` and `error_type`, with 422
for what is wrong in a request; unknown fields are ignored.
"""

import functools
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response
from starlette.types import Send

from models.messages import Chunk, HttpCall, Started
from registry.errors import EngineFailed, NotFound, RoundhouseError
from registry.files.context import context_of
from registry.recipes.definition import Task
from runtime import sse
from runtime.gateway.core import Chosen, Gateway
from runtime.gateway.prefer import PREFERENCE
from runtime.http import errors as http_errors
from runtime.http.chat.bounds import check_size
from runtime.http.chat.endpoints import http_call
from runtime.http.chat.progress import progress_stream
from runtime.http.common import choose_or_only, decode
from runtime.http.errors import Dialect
from runtime.http.relay import Served, answer, serving, start
from runtime.http.text_generation.answers import Completion, Stream, told, whole
from runtime.http.text_generation.bodies import GenerateBody, Generation, generation
from runtime.http.working import Working, error_response, read_body
from runtime.slots.link import Call

ENGINE_PATH = "/v1/completions"
EVENT_STREAM = Started(status=200, content_type="text/event-stream")


class GenerateEndpoints:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def routes(self) -> list[tuple[str, Any, list[str]]]:
        return [(path, self.handle, ["POST"]) for path in ("/generate", "/generate_stream", "/")]

    async def handle(self, request: Request) -> Response:
        path = request.url.path
        try:
            raw = await read_body(request, self.gateway.settings.max_json)
            check_size(raw, [recipe for recipe in self.gateway.recipes if recipe.task is Task.CHAT])
            body = decode(raw, GenerateBody)
            streams = path == "/generate_stream" or bool(body.stream)
            asked = generation(body, stream=streams, full_text=path == "/")
            chosen = self._choose(body.model or request.query_params.get("model"), asked.parameters.adapter_id)
        except RoundhouseError as error:
            return error_response(error, Dialect.TGI)

        def make() -> HttpCall:  # once the model is there, and tells its context
            entry = chosen.entry
            context = (entry.loaded.context_length if entry.loaded else 0) or context_of(entry.recipe, entry.path)
            return http_call(ENGINE_PATH, asked.completion(context), chosen)

        async def work(send: Send) -> Response | None:
            async with AsyncExitStack() as stack:
                if streams and PREFERENCE.get().progress and not chosen.entry.is_ready:
                    send = await stack.enter_async_context(progress_stream(chosen.entry, send, Dialect.TGI))
                served, call = await stack.enter_async_context(serving(self.gateway, chosen, path, make))
                if streams:
                    await _stream(served, call, asked, send)
                    return None
                found = whole(asked, await _body(served, call))
                data = msgspec.json.encode([found] if path == "/" else found)
                return Response(data, headers=served.headers(), media_type="application/json")

        return Working(work, Dialect.TGI)

    def _choose(self, name: str | None, adapter: str | None) -> Chosen:
        """Raises NotFound, or BadRequest where nothing names a model and there are several."""
        if not adapter:
            return choose_or_only(self.gateway, name, Task.CHAT)
        if name is not None:
            return self.gateway.choose(name, Task.CHAT, adapter=adapter)
        ids = [recipe.id for recipe in self.gateway.recipes if recipe.task is Task.CHAT]
        if len(ids) == 1:
            return self.gateway.choose(ids[0], Task.CHAT, adapter=adapter)
        chosen = self.gateway.choose(adapter, Task.CHAT)
        if chosen.adapter is None:
            raise NotFound(
                f"'{adapter}' is a model, not an adapter: name it in 'model'.", param="parameters.adapter_id"
            )
        return chosen


async def _body(served: Served, call: Call) -> bytes:
    """The engine's answer as a whole. Raises its refusal."""
    status, parts = 200, []
    async for event in answer(served, call):
        if isinstance(event, Chunk):
            parts.append(event.data)
        else:
            status = event.status
    data = b"".join(parts)
    if status >= 400:
        raise _refusal(status, data)
    return data


async def _stream(served: Served, call: Call, asked: Generation, send: Send) -> None:
    """One event per token. The status line waits for the first; an error after it is the last event."""
    open_ = False
    stream = Stream(asked)
    write = functools.partial(_write, send)
    try:
        async with aclosing(_lines(served, call)) as lines:
            async for line in lines:
                if line == sse.DONE or not (events := stream.feed(line)):
                    continue
                if not open_:
                    await start(send, EVENT_STREAM, served)
                    open_ = True
                await write(b"".join(b"data:%s\n\n" % msgspec.json.encode(event) for event in events))
        if not stream.finished:
            raise EngineFailed("The answer ended before it was complete.")
    except RoundhouseError as error:
        if not open_:
            raise
        served.outcome = error.code
        await write(http_errors.sse(error, Dialect.TGI))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _lines(served: Served, call: Call) -> AsyncGenerator[bytes, None]:
    """The data of the engine's server-sent events, however they were cut. Raises its refusal."""
    status, refusal, reader = 200, b"", sse.Reader()
    async with aclosing(answer(served, call)) as events:
        async for event in events:
            if isinstance(event, Started):
                status = event.status
            elif status >= 400:
                refusal += event.data
            else:
                for data in reader.feed(event.data):
                    yield data
    if status >= 400:
        raise _refusal(status, refusal)


def _refusal(status: int, data: bytes) -> RoundhouseError:
    try:
        found = msgspec.json.decode(data, type=Completion).error
    except msgspec.DecodeError:
        found = None
    return told(status, found.message if found is not None else "The engine refused this request.")
