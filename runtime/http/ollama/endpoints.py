"""Ollama's chat, text and embeddings, over vLLM's chat completions and the embedding models.

| body                              | answer                                                                          |
|-----------------------------------|---------------------------------------------------------------------------------|
| `stream` true or absent           | a line of JSON for each piece; the last has counts and times                    |
| `stream: false`                   | one object                                                                      |
| without messages, or a prompt     | the model is loaded: `done_reason` is `load`                                    |
| the same with `keep_alive: 0`     | the model is unloaded: `unload` (`runtime.http.ollama.keep_alive`)              |

A raw prompt uses vLLM's completions. Tools, thinking and images are refused before loading a model that does not
support them.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from models.messages import EmbedRequest, Event
from models.tasks import Call
from models.tasks.chat import ChatPayload
from registry.errors import BadRequest, EngineFailed
from registry.files.context import Ability
from registry.recipes.definition import Task
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Target
from runtime.http.bodies import decode_known, refuse_adapters
from runtime.http.chat.answers import read_engine_answer, read_engine_events
from runtime.http.dialect import (
    JSON,
    NDJSON,
    NO_BUFFERING,
    Endpoint,
    Head,
    ParsedRequest,
    Parts,
    warning,
    whole_answer,
)
from runtime.http.embeddings.bodies import input_list, received, tei_json
from runtime.http.errors import Dialect
from runtime.http.ollama import translation
from runtime.http.ollama.answers import Answer, OllamaChat, OllamaGeneration, Timings, Writer
from runtime.http.ollama.bodies import (
    OllamaBody,
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaOptions,
)
from runtime.http.ollama.keep_alive import serve_with_keep_alive, unloads
from runtime.http.route import RouteGroup
from runtime.http.schema import NULL, component, ref, structs

CHAT, GENERATE = "/api/chat", "/api/generate"


@dataclass(slots=True)
class OllamaRequest:
    """A chat or generation."""

    path: str
    ollama_body: OllamaBody
    body: Mapping[str, Any] | None  # for vLLM; None to only load the model
    needs: Mapping[Ability, str]  # required abilities, and the fields that need them
    timings: Timings = field(default_factory=Timings)
    context_warning: str = ""  # set if the last target's context is shorter than requested

    def calls(self, context_length: int | None) -> Sequence[Call]:
        self.timings.turn, self.timings.first = self.timings.clock(), None  # an attempt before may have had a token
        if self.body is None:
            return []
        context = translation.read(self.ollama_body.options).num_ctx
        is_short = context is not None and context_length is not None and context > context_length
        self.context_warning = f"num_ctx: the model's context has {context_length} tokens" if is_short else ""
        if "prompt" not in self.body:
            begun = translation.is_begun(self.ollama_body)
            return [ChatPayload("/v1/chat/completions", self.body, continues=begun, is_translated=True)]
        if "max_tokens" in self.body:
            return [ChatPayload("/v1/completions", self.body)]
        limit = {} if context_length is None else {"max_tokens": context_length}  # vLLM's default is 16
        return [ChatPayload("/v1/completions", {**self.body, **limit}, fills=True)]

    async def render(self, target: Target, events: AsyncIterator[Event]) -> Parts:
        for ability, name in self.needs.items():
            if ability not in target.abilities:
                what, why = CANNOT[ability]
                if target.provider:
                    why = f"`abilities` in its provider's document lacks {ability.value}"
                message = f"Model '{target.model}' {what}: {why}. Leave '{name}' out."
                raise BadRequest(message, param=name, code="unsupported_value")
        writer = Writer(self.ollama_body.model, self.path == CHAT, self.timings)
        if self.ollama_body.stream is False:
            parts = self._whole(writer, events)
        else:
            parts = self._lines(writer, events)
        async with aclosing(parts):
            async for part in parts:
                yield part

    async def _whole(self, writer: Writer, events: AsyncIterator[Event]) -> Parts:
        data = await read_engine_answer(events)
        answer = writer.only("load") if self.body is None else writer.whole_answer(data)
        async for part in whole_answer(msgspec.json.encode(answer), headers=warning(self.context_warning)):
            yield part

    async def _lines(self, writer: Writer, events: AsyncIterator[Event]) -> Parts:
        """Yield head and lines. The head waits for the first line, so that an earlier error keeps its status."""
        opened = False
        async with aclosing(self._answers(writer, events)) as lines:
            async for line in lines:
                if not opened:
                    kind = JSON if self.body is None else NDJSON  # Ollama does not stream the answer to a load
                    yield Head(200, kind, {**NO_BUFFERING, **warning(self.context_warning)})
                    opened = True
                yield msgspec.json.encode(line) + b"\n"

    async def _answers(self, writer: Writer, events: AsyncIterator[Event]) -> AsyncGenerator[Answer, None]:
        async with aclosing(read_engine_events(events)) as lines:
            async for line in lines:
                if (answer := writer.line(line)) is not None:
                    yield answer
        if self.body is None:
            yield writer.only("load")
            return
        if not writer.finished:
            raise EngineFailed("The answer ended before it was complete.")
        if (calls := writer.calls()) is not None:
            yield calls
        yield writer.last()


# Ollama's wording: its clients retry without the field after "does not support thinking" or "… tools".
CANNOT: Mapping[Ability, tuple[str, str]] = {
    Ability.TOOLS: ("does not support tools", "its recipe has no tool_call_parser"),
    Ability.THINKING: ("does not support thinking", "its recipe has no reasoning_parser"),
    Ability.VISION: ("takes no images", "it reads text only"),
}
"""The limitation of a model without an ability, and its reason."""


def _parsed_request(
    path: str,
    ollama_body: OllamaBody,
    body: Mapping[str, Any] | None,
    unknown: Sequence[str],
    *,
    has_images: bool,
    has_tools: bool,
) -> ParsedRequest:
    unloads(ollama_body.keep_alive)  # refuse an invalid value before the model is loaded
    thinks = ollama_body.think not in (None, False)
    needs = {
        ability: name
        for ability, name, is_needed in (
            (Ability.TOOLS, "tools", has_tools),
            (Ability.THINKING, "think", thinks),
            (Ability.VISION, "images", has_images),
        )
        if is_needed
    }
    request = OllamaRequest(path, ollama_body, body, needs)
    # `stream` stays False, since its lines are not server-sent events
    return ParsedRequest(
        ModelRef(Task.CHAT, ollama_body.model),
        request.calls,
        request.render,
        Dialect.OLLAMA,
        renamed=translation.NAMES,
        left_out=[*refuse_adapters(unknown), *translation.unused(ollama_body.options)],
    )


def _parse_chat(data: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    ollama_body, unknown = decode_known(data, OllamaChatBody)
    has_images = any(message.images for message in ollama_body.messages or ())
    body = translation.chat(ollama_body) if ollama_body.messages else None
    has_tools = bool(ollama_body.tools)
    return _parsed_request(CHAT, ollama_body, body, unknown, has_images=has_images, has_tools=has_tools)


def _parse_generate(data: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    ollama_body, unknown = decode_known(data, OllamaGenerateBody)
    body = translation.generation(ollama_body) if ollama_body.prompt else None
    has_images = bool(ollama_body.images)
    return _parsed_request(GENERATE, ollama_body, body, unknown, has_images=has_images, has_tools=False)


# --- embeddings ------------------------------------------------------------------------------------------------------
class OllamaVectors(msgspec.Struct):
    """The answer of /api/embed. Durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVector(msgspec.Struct):
    """The answer of /api/embeddings."""

    embedding: list[float]


def _parsed_embedding(
    body: OllamaEmbedBody | OllamaEmbeddingsBody,
    unknown: Sequence[str],
    request: EmbedRequest,
    write: Callable[[bytes, int, Timings], bytes],
) -> ParsedRequest:
    """write: builds the body from rows of JSON, tokens and timings. Without inputs the model is only loaded."""
    unloads(body.keep_alive)
    timings = Timings()

    def calls(_: int | None) -> Sequence[Call]:
        timings.turn = timings.clock()
        return [request] if request.inputs else []

    async def render(_: Target, events: AsyncIterator[Event]) -> Parts:
        rows, tokens = b"[]", 0
        if request.inputs:
            vectors, tokens = await received(events, len(request.inputs))
            rows = await tei_json(vectors)
        else:
            await anext(events, None)  # takes a turn, for which the model is loaded
        async for part in whole_answer(write(rows, tokens, timings)):
            yield part

    left_out = [*unknown, *translation.unused(body.options)]
    return ParsedRequest(ModelRef(Task.EMBED, body.model), calls, render, Dialect.OLLAMA, left_out=left_out)


def _parse_embed(data: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    ollama_body, unknown = decode_known(data, OllamaEmbedBody)
    texts = ollama_body.input
    inputs = input_list(texts if isinstance(texts, str) else [*texts], "input") if texts else []  # none: only load
    request = EmbedRequest(inputs=inputs, dimensions=ollama_body.dimensions, truncate=ollama_body.truncate is not False)

    def write(rows: bytes, tokens: int, timings: Timings) -> bytes:
        model, durations = msgspec.json.encode(ollama_body.model), timings.durations()
        times = (durations["total_duration"], durations["load_duration"], tokens)
        shape = b'{"model":%s,"embeddings":%s,"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d}'
        return shape % (model, rows, *times)

    return _parsed_embedding(ollama_body, unknown, request, write)


def _parse_embeddings(data: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    ollama_body, unknown = decode_known(data, OllamaEmbeddingsBody)
    request = EmbedRequest(inputs=[ollama_body.prompt] if ollama_body.prompt else [], truncate=True)
    return _parsed_embedding(
        ollama_body, unknown, request, lambda rows, _tokens, _timings: b'{"embedding":%s}' % (rows[1:-1] or b"[]")
    )


# --- paths -----------------------------------------------------------------------------------------------------------
_route = RouteGroup("Ollama", (Dialect.OLLAMA,))
_endpoint = partial(_route.endpoint, serve=serve_with_keep_alive)
for _body in (OllamaChatBody, OllamaGenerateBody, OllamaEmbedBody, OllamaEmbeddingsBody):
    _schema = structs(_body)[_body.__name__]
    component(
        _body.__name__,
        {**_schema, "properties": {**_schema["properties"], "options": {"anyOf": [ref("OllamaOptions"), NULL]}}},
    )
component("OllamaOptions", structs(OllamaOptions)["OllamaOptions"])
_CHAT = {"model": "starter-chat", "messages": [{"role": "user", "content": "turn on the lamp"}]}
ENDPOINTS = [
    _endpoint(
        Endpoint(CHAT, _parse_chat, Dialect.OLLAMA),
        id="ollamaChat",
        summary="Chat",
        description="Lines of JSON; one object with `stream: false`. Tools, thinking and images are refused for a "
        "model that cannot handle them.",
        answer={NDJSON: OllamaChat, JSON: OllamaChat},
        body=OllamaChatBody,
        examples={
            "stream": _CHAT,
            "adapter": {**_CHAT, "model": "uppercase", "stream": False, "options": {"temperature": 0}},
        },
    ),
    _endpoint(
        Endpoint(GENERATE, _parse_generate, Dialect.OLLAMA),
        id="ollamaGenerate",
        summary="Generate text",
        description="The prompt is one message of a chat; with `raw: true` the model gets it as it is.",
        answer={NDJSON: OllamaGeneration, JSON: OllamaGeneration},
        body=OllamaGenerateBody,
        examples={"prompt": {"model": "starter-chat", "prompt": "what is a slot?"}},
    ),
    _endpoint(
        Endpoint("/api/embed", _parse_embed, Dialect.OLLAMA),
        id="ollamaEmbed",
        summary="Embeddings",
        answer=OllamaVectors,
        body=OllamaEmbedBody,
        examples={"texts": {"model": "starter-embed", "input": ["a warm kitchen", "a cold cellar"]}},
    ),
    _endpoint(
        Endpoint("/api/embeddings", _parse_embeddings, Dialect.OLLAMA),
        id="ollamaEmbeddings",
        summary="One embedding (older)",
        answer=OllamaVector,
        body=OllamaEmbeddingsBody,
        examples={"text": {"model": "starter-embed", "prompt": "a warm kitchen"}},
    ),
]
