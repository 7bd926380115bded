"""Cohere's v2 chat, based on vLLM's chat completions, and its embeddings of both versions."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec

from models import sse
from models.messages import Event
from models.tasks.chat import ChatPayload
from registry.errors import EngineFailed
from registry.recipes.definition import Task
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Target
from runtime.http.bodies import convert, refuse_adapters, unknown_fields
from runtime.http.chat.answers import read_engine_answer, read_engine_events
from runtime.http.cohere import translation
from runtime.http.cohere.answers import CohereChat, CohereVectors, CohereVectorsV1, CohereWriter, vectors_json
from runtime.http.cohere.bodies import CohereChatBody, CohereEmbedBody, CohereEmbedV1Body
from runtime.http.dialect import (
    EVENT_STREAM,
    JSON,
    NDJSON,
    NO_BUFFERING,
    Endpoint,
    Head,
    ParsedRequest,
    Parts,
    whole_answer,
)
from runtime.http.embeddings.bodies import received
from runtime.http.errors import Dialect
from runtime.http.route import RouteGroup
from runtime.http.schema import STREAM
from runtime.http.serving import serve

WITHOUT_EFFECT = ("citation_options", "safety_mode")
"""Fields for features that no model here has."""


def _parse_chat(data: dict[str, Any]) -> ParsedRequest:
    body = convert({name: value for name, value in data.items() if value is not None}, CohereChatBody)
    without_effect = [name for name in WITHOUT_EFFECT if getattr(body, name) is not None]
    names = [*refuse_adapters(unknown_fields(data, CohereChatBody)), *without_effect]
    call = ChatPayload("/v1/chat/completions", translation.chat(body), is_translated=True)
    return ParsedRequest(
        ModelRef(Task.CHAT, body.model),
        calls=lambda _: [call],
        render=lambda _, events: _stream(events) if body.stream else _whole(events),
        dialect=Dialect.COHERE,
        renamed=translation.NAMES,
        stream=bool(body.stream),
        left_out=names,
    )


async def _whole(events: AsyncIterator[Event]) -> Parts:
    answer = CohereWriter().whole(await read_engine_answer(events))
    async for part in whole_answer(msgspec.json.encode(answer)):
        yield part


async def _stream(events: AsyncIterator[Event]) -> Parts:
    """Yield the answer. The head waits for the engine's first event, so that an earlier error keeps its status."""
    opened, writer = False, CohereWriter()
    async with aclosing(read_engine_events(events)) as lines:
        async for line in lines:
            written = list(writer.events(line))
            if not opened:
                yield Head(200, f"{EVENT_STREAM}; charset=utf-8", NO_BUFFERING)
                written.insert(0, writer.start())
                opened = True
            if written:
                yield _written(written)
    if writer.reason is None:
        raise EngineFailed("The answer ended before it was complete.")
    yield _written(list(writer.end()))


def _serve_chat(
    gateway: Gateway, context: RequestContext, endpoint: Endpoint, body: bytes, query: Mapping[str, str]
) -> Parts:
    """Like `serve`. A client that accepts no events, as LiteLLM, gets a line of JSON for each, as from Cohere."""
    parts = serve(gateway, context, endpoint, body, query)
    accepted = b",".join(value for name, value in context.headers if name == b"accept").lower()
    return _lines(parts) if accepted and b"text/" not in accepted and b"*/*" not in accepted else parts


async def _lines(parts: Parts) -> Parts:
    reader, has_events = sse.Reader(), False
    async with aclosing(parts):
        async for part in parts:
            if isinstance(part, Head):
                has_events = part.content_type.startswith(EVENT_STREAM)
                yield replace(part, content_type=NDJSON) if has_events else part
            elif not has_events:
                yield part
            elif lines := reader.feed(part):
                yield b"".join(data + b"\n" for data in lines)


def _written(events: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(sse.event(event, event["type"]) for event in events)


def _parse_embed(data: dict[str, Any], kind: type[CohereEmbedV1Body], version: str) -> ParsedRequest:
    body = convert({name: value for name, value in data.items() if value is not None}, kind)
    request, types = body.request(), list(dict.fromkeys(body.embedding_types or ()))
    if version == "2":
        types = types or ["float"]

    async def render(_: Target, events: AsyncIterator[Event]) -> Parts:
        vectors, tokens = await received(events, len(request.inputs))
        answer = await vectors_json(vectors, types, body.all_texts, tokens, version)
        async for part in whole_answer(answer):
            yield part

    renamed = {"input": "texts", "prompt_name": "input_type", "dimensions": "output_dimension"}
    return ParsedRequest(
        ModelRef(Task.EMBED, body.model),
        lambda _: [request],
        render,
        Dialect.COHERE,
        renamed=renamed,
        left_out=unknown_fields(data, kind),
    )


# --- paths -----------------------------------------------------------------------------------------------------------
_chat, _embeddings = RouteGroup("Chat"), RouteGroup("Embeddings")
_HELLO = [{"role": "user", "content": "turn on the lamp"}]


def _embed_endpoint(path: str, kind: type[CohereEmbedV1Body], version: str) -> Endpoint:
    def parse(data: dict[str, Any]) -> ParsedRequest:
        return _parse_embed(data, kind, version)

    return Endpoint.of_objects(path, parse, Dialect.COHERE)


ENDPOINTS = [
    _chat.endpoint(
        Endpoint.of_objects("/v2/chat", _parse_chat, Dialect.COHERE),
        id="chatCohere",
        summary="Chat (Cohere v2)",
        description="Documents and logprobs are refused; fields without effect are left out, and a header names them"
        "; a strict client has them refused.",
        answer={JSON: CohereChat, **STREAM},
        body=CohereChatBody,
        parameters=("Prefer", "Progress"),
        serve=_serve_chat,
        examples={
            "chat": {"model": "starter-chat", "messages": _HELLO},
            "stream": {"model": "starter-chat", "messages": _HELLO, "stream": True},
        },
    ),
    _embeddings.endpoint(
        _embed_endpoint("/v2/embed", CohereEmbedBody, "2"),
        id="embedCohere",
        summary="Embeddings (Cohere v2)",
        answer=CohereVectors,
        body=CohereEmbedBody,
        examples={
            "texts": {"model": "starter-embed", "input_type": "search_document", "texts": ["a warm kitchen"]},
            "small": {
                "model": "starter-embed",
                "input_type": "search_query",
                "texts": ["a warm kitchen"],
                "embedding_types": ["int8", "ubinary"],
            },
        },
    ),
    _embeddings.endpoint(
        _embed_endpoint("/v1/embed", CohereEmbedV1Body, "1"),
        id="embedCohereV1",
        summary="Embeddings (Cohere v1)",
        answer=CohereVectorsV1,
        body=CohereEmbedV1Body,
        examples={"texts": {"model": "starter-embed", "texts": ["a warm kitchen"]}},
    ),
]
