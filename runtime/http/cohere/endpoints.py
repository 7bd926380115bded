"""Cohere's v2 chat, based on vLLM's chat completions, and its embeddings of both versions."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec

from models import sse
from models.messages import THINK, Event
from models.tasks.chat import ChatPayload
from registry.errors import BadRequest, EngineFailed
from registry.recipes.definition import Task
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Target
from runtime.http.bodies import convert, refuse_adapters, unknown_fields
from runtime.http.chat.answers import read_engine_answer, read_engine_events
from runtime.http.cohere.answers import CohereChat, CohereVectors, CohereVectorsV1, CohereWriter, vectors_json
from runtime.http.cohere.bodies import (
    CohereChatBody,
    CohereContent,
    CohereEmbedBody,
    CohereEmbedV1Body,
    CohereMessage,
    CohereTool,
)
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
    call = ChatPayload("/v1/chat/completions", chat_body(body))
    return ParsedRequest(
        ModelRef(Task.CHAT, body.model),
        calls=lambda _: [call],
        render=lambda _, events: _stream(events) if body.stream else _whole(events),
        dialect=Dialect.COHERE,
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
            found = list(writer.events(line))
            if not opened:
                yield Head(200, f"{EVENT_STREAM}; charset=utf-8", NO_BUFFERING)
                found.insert(0, writer.start())
                opened = True
            if found:
                yield _written(found)
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
            elif found := reader.feed(part):
                yield b"".join(data + b"\n" for data in found)


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


Json = dict[str, Any]
CHOICES = {"REQUIRED": "required", "NONE": "none"}


def chat_body(body: CohereChatBody) -> Json:
    """The body for /v1/chat/completions. Raises BadRequest."""
    body.refuse()
    fields: Json = {
        "model": body.model,
        "messages": list(_messages(body.messages)),
        "stream": bool(body.stream),
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "seed": body.seed,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "top_k": body.k,
        "top_p": body.p,
        "tools": [_tool(tool, strict=bool(body.strict_tools)) for tool in body.tools or ()] or None,
        "tool_choice": CHOICES.get(body.tool_choice or ""),
    }
    result = {name: value for name, value in fields.items() if value is not None}
    if body.stream:
        result["stream_options"] = {"include_usage": True}
    if (form := body.response_format) is not None and form.type == "json_object":
        shape: Json = {"type": "json_object"}
        if (schema := form.json_schema if form.json_schema is not None else form.schema) is not None:
            shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        result["response_format"] = shape
    if (thinking := body.thinking) is not None:
        result |= {"reasoning_effort": "none"} if thinking.type == "disabled" else {"chat_template_kwargs": THINK}
        if thinking.type == "enabled" and thinking.token_budget is not None:
            result["thinking_token_budget"] = thinking.token_budget
    return result


def _tool(tool: CohereTool, *, strict: bool) -> Json:
    function = tool.function
    parts: Json = {"name": function.name, "description": function.description, "parameters": function.parameters}
    found = {name: value for name, value in parts.items() if value is not None}
    return {"type": "function", "function": {**found, "strict": True} if strict else found}


def _messages(messages: Sequence[CohereMessage]) -> Iterator[Json]:
    for index, message in enumerate(messages):
        where = f"messages[{index}].content"
        parts = message.content if isinstance(message.content, list) else []
        converted: Json = {"role": message.role}
        if message.role == "user":
            converted["content"] = [_part(part, where) for part in parts] if parts else message.content
        else:
            converted["content"] = "".join(_text(part, where) for part in parts) if parts else message.content
        if message.role == "tool":
            if message.tool_call_id is None:
                where = f"messages[{index}].tool_call_id"
                raise BadRequest(f"'{where}' is missing: send the id of the call whose result this is.", param=where)
            converted["tool_call_id"] = message.tool_call_id
        elif message.role == "assistant":
            converted["content"] = converted["content"] or message.tool_plan or converted["content"]
            if thoughts := "".join(part.thinking or "" for part in parts if part.type == "thinking"):
                converted["reasoning"] = thoughts
            if message.tool_calls:
                converted["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments or "{}"},
                    }
                    for call in message.tool_calls
                ]
        if converted["content"] is None and not message.tool_calls:
            raise BadRequest(f"'{where}' is missing: send a text.", param=where)
        yield converted


def _part(part: CohereContent, where: str) -> Json:
    """A part of a user's message."""
    if part.type == "image_url" and part.image_url is not None:
        detail = {} if part.image_url.detail is None else {"detail": part.image_url.detail}
        return {"type": "image_url", "image_url": {"url": part.image_url.url, **detail}}
    return {"type": "text", "text": _text(part, where)}


def _text(part: CohereContent, where: str) -> str:
    """The text of a part. A document gives its data as JSON. Thinking is handled elsewhere."""
    if part.type == "text" and part.text is not None:
        return part.text
    if part.type == "document" and part.document is not None:
        data = part.document.data
        return data if isinstance(data, str) else msgspec.json.encode(data).decode()
    if part.type == "thinking":
        return ""
    raise BadRequest(f"'{where}' has a part of type '{part.type}' without its '{part.type}': send it.", param=where)
