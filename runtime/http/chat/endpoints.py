"""The chat endpoints: bodies are forwarded to vLLM's own application, and its answers to the client."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from models.messages import Chunk, Event, ResponseStart
from models.tasks.chat import ChatPayload
from registry.errors import BadRequest
from registry.recipes.definition import Task
from runtime.gateway.names import ModelRef
from runtime.http import errors as http_errors
from runtime.http.bodies import ADAPTER_FIELDS
from runtime.http.dialect import NO_BUFFERING, Endpoint, Head, ParsedRequest, Parts
from runtime.http.errors import Dialect
from runtime.http.responses.recording import serve_stored
from runtime.http.route import RouteGroup
from runtime.http.schema import COUNT, JSON, STREAM, STRING, Json, component, nullable, record

PATHS: dict[str, Dialect] = {
    "/v1/chat/completions": Dialect.OPENAI,
    "/v1/completions": Dialect.OPENAI,
    "/v1/responses": Dialect.OPENAI,
    "/v1/responses/input_tokens": Dialect.OPENAI,
    "/v1/messages": Dialect.ANTHROPIC,
    "/v1/messages/count_tokens": Dialect.ANTHROPIC,
    "/tokenize": Dialect.OPENAI,
    "/detokenize": Dialect.OPENAI,
}


async def _render(events: AsyncIterator[Event], dialect: Dialect) -> Parts:
    """Forward the engine's answer: a stream as it arrives, and a whole answer once its usage is known, for the headers
    about limits. vLLM writes most errors in OpenAI's format, which are converted on Anthropic's paths. They may repeat
    the client's text at any length, which is cut.
    """
    begin: Head | None = None
    opened, whole = False, bytearray()
    async for event in events:
        if isinstance(event, ResponseStart):
            begin = head(event)
        elif isinstance(event, Chunk) and begin is not None:
            if begin.status >= 400 or not begin.is_stream:
                whole += event.data
                continue
            if not opened:
                yield begin
                opened = True
            yield event.data
    if begin is None or opened:
        return
    data = bytes(whole)
    if begin.status >= 400:  # without a length, which would end the request's record: a fall-back may answer yet
        code, data = http_errors.translate_engine_error(begin.status, data, dialect) if data else (None, data)
        yield replace(begin, code=code)
    elif begin.is_stream:
        yield begin
    else:
        yield replace(begin, headers={**begin.headers, "content-length": str(len(data))})
    yield data


def head(started: ResponseStart) -> Head:
    """Status line and headers of the engine's answer."""
    plain = Head(started.status, started.content_type)
    return Head(plain.status, plain.content_type, NO_BUFFERING) if plain.is_stream else plain


def _take_adapter(data: dict[str, Any]) -> str | None:
    """Take the adapter's name out of a body. Raises BadRequest for two that differ."""
    names = {field: value for field in ADAPTER_FIELDS if (value := data.pop(field, None)) is not None}
    for field, value in names.items():
        if not isinstance(value, str):
            raise BadRequest(f"'{field}' must be a string.", param=field)
    if len(set(names.values())) > 1:
        first, second, *_ = names
        raise BadRequest(f"'{first}' and '{second}' name two adapters: send one of them.", param=second)
    return next(iter(names.values()), None)


def _endpoint(path: str, dialect: Dialect) -> Endpoint:
    def parse(data: dict[str, Any]) -> ParsedRequest:
        adapter = _take_adapter(data)
        calls = [ChatPayload(path, data)]
        return ParsedRequest(
            ModelRef(Task.CHAT, data.get("model"), adapter),
            calls=lambda _: calls,
            render=lambda _, events: _render(events, dialect),
            dialect=dialect,
            stream=data.get("stream") is True,
        )

    return Endpoint.of_objects(path, parse, dialect)


ENDPOINTS = [_endpoint(path, dialect) for path, dialect in PATHS.items()]


VLLM: dict[str, Json] = msgspec.json.decode(Path(__file__).with_name("schemas.json").read_bytes())
OURS: dict[str, Json] = {
    "model": {
        "type": "string",
        "description": "A chat model, an alias, an adapter (`name`, `name@v2`, `name@alias`) or `base:adapter`.",
        "examples": ["starter-chat", "uppercase", "starter-chat:uppercase@v2"],
    },
    "adapter_id": nullable(
        {**STRING, "description": "An adapter of `model`, named apart from it; also as `lora_name` or `lora_path`."}
    ),
}
"""Fields of all requests."""
for _name, _schema in VLLM.items():
    if "model" in _schema.get("properties", ()) and _name.endswith("Request"):
        _required = [*_schema.get("required", ()), "model"]
        _schema |= {"properties": _schema["properties"] | OURS, "required": list(dict.fromkeys(_required))}
    component(_name, _schema)

_route = RouteGroup("Chat")
_BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
_STREAMS = ("Prefer", "Progress")
_HELLO = [{"role": "user", "content": "turn on the lamp"}]
_CHAT = {"model": "starter-chat", "messages": _HELLO}
_route.endpoint(
    _BY_PATH["/v1/chat/completions"],
    id="createChatCompletion",
    summary="Chat completion (OpenAI)",
    answer={JSON: "ChatCompletion", **STREAM},
    body="ChatCompletionRequest",
    parameters=_STREAMS,
    examples={
        "adapter": {"model": "uppercase", "messages": _HELLO},
        "stream": {**_CHAT, "stream": True, "stream_options": {"include_usage": True}},
    },
)
_route.endpoint(
    _BY_PATH["/v1/completions"],
    id="createCompletion",
    summary="Text completion (OpenAI)",
    answer={JSON: "Completion", **STREAM},
    body="CompletionRequest",
    parameters=_STREAMS,
    examples={"prompt": {"model": "starter-chat", "prompt": "what is a slot?", "max_tokens": 64}},
)
_route.endpoint(
    _BY_PATH["/v1/responses"],
    id="createResponse",
    summary="Response (OpenAI)",
    serve=serve_stored,
    answer={JSON: "ResponsesResponse", **STREAM},
    body="ResponsesRequest",
    parameters=_STREAMS,
    examples={"input": {"model": "starter-chat", "input": "what is a slot?"}},
)
_route.endpoint(
    _BY_PATH["/v1/responses/input_tokens"],
    id="countResponseTokens",
    summary="Tokens of a response's input (OpenAI)",
    serve=serve_stored,
    answer=record({"object": {"const": "response.input_tokens"}, "input_tokens": COUNT}),
    body="ResponsesRequest",
    examples={"input": {"model": "starter-chat", "input": "what is a slot?"}},
)
_route.endpoint(
    _BY_PATH["/v1/messages"],
    id="createMessage",
    summary="Message (Anthropic)",
    answer={JSON: "AnthropicMessage", **STREAM},
    body="AnthropicRequest",
    parameters=_STREAMS,
    examples={"adapter": {"model": "uppercase", "max_tokens": 64, "messages": _HELLO}},
)
_route.endpoint(
    _BY_PATH["/v1/messages/count_tokens"],
    id="countMessageTokens",
    summary="Tokens of a message (Anthropic)",
    answer="CountTokens",
    body="CountTokensRequest",
    examples={"messages": _CHAT},
)
_route.endpoint(
    _BY_PATH["/tokenize"],
    id="tokenize",
    summary="Text or messages to token ids (vLLM)",
    description="Send `prompt` or `messages`.",
    answer="Tokens",
    body=("TokenizeCompletionRequest", "TokenizeChatRequest"),
    examples={"prompt": {"model": "starter-chat", "prompt": "hello"}},
)
_route.endpoint(
    _BY_PATH["/detokenize"],
    id="detokenize",
    summary="Token ids to text (vLLM)",
    answer="Detokenized",
    body="DetokenizeRequest",
    examples={"tokens": {"model": "starter-chat", "tokens": [1, 2, 3]}},
)
