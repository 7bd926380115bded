"""The chat family: vLLM's own application answers; the body is passed on, and so is what comes back."""

from collections.abc import AsyncIterator
from typing import Any

from models.messages import Chunk, Event, ResponseStart
from models.tasks.chat import ChatPayload
from registry.errors import BadRequest
from registry.recipes.definition import Task
from runtime.gateway.names import ModelRef
from runtime.http import errors as http_errors
from runtime.http.bodies import parse_object
from runtime.http.dialect import NO_BUFFERING, Endpoint, Head, ParsedRequest, Parts
from runtime.http.errors import Dialect

PATHS: dict[str, Dialect] = {
    "/v1/chat/completions": Dialect.OPENAI,
    "/v1/completions": Dialect.OPENAI,
    "/v1/responses": Dialect.OPENAI,
    "/v1/messages": Dialect.ANTHROPIC,
    "/v1/messages/count_tokens": Dialect.ANTHROPIC,
    "/tokenize": Dialect.OPENAI,
    "/detokenize": Dialect.OPENAI,
}


async def _render(events: AsyncIterator[Event], dialect: Dialect) -> Parts:
    """The engine's answer as it comes. vLLM writes most errors in OpenAI's shape, on Anthropic's paths too: there they
    are brought into Anthropic's. It repeats in them what the client sent, of any length: that is cut.
    """
    started: ResponseStart | None = None
    opened, refusal = False, bytearray()
    async for event in events:
        if isinstance(event, Chunk) and started is not None:
            if started.status >= 400:
                refusal += event.data
                continue
            if not opened:
                yield head(started)
                opened = True
            yield event.data
        elif isinstance(event, ResponseStart):
            started = event
    if started is not None and not opened:
        yield head(started)
    if refusal and started is not None:
        yield http_errors.translate_engine_error(started.status, bytes(refusal), dialect)


def head(started: ResponseStart) -> Head:
    """The status line and headers of the engine's answer."""
    found = Head(started.status, started.content_type)
    return Head(found.status, found.content_type, NO_BUFFERING) if found.is_stream else found


def _endpoint(path: str, dialect: Dialect) -> Endpoint:
    def parse(data: dict[str, Any]) -> ParsedRequest:
        adapter = data.pop("adapter_id", None)  # LoRAX's way to name one
        if adapter is not None and not isinstance(adapter, str):
            raise BadRequest("'adapter_id' must be a string.", param="adapter_id")
        calls = [ChatPayload(path, data)]
        return ParsedRequest(
            ModelRef(Task.CHAT, data.get("model"), adapter),
            calls=lambda _: calls,
            render=lambda _, events: _render(events, dialect),
            dialect=dialect,
            stream=data.get("stream") is True,
        )

    return Endpoint(path, lambda body, _query: parse(parse_object(body)), dialect, parse)


ENDPOINTS = [_endpoint(path, dialect) for path, dialect in PATHS.items()]
