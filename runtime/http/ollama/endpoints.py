"""Chat and text as Ollama has them, over vLLM's chat completions; a raw prompt goes to its completions.

| body                              | answer                                                         |
|-----------------------------------|----------------------------------------------------------------|
| `stream` true or left out         | a line of JSON for each piece; the last has counts and times   |
| `stream: false`                   | one object                                                     |
| without messages, or a prompt     | the model is loaded: `done_reason` is `load`                   |
| the same with `keep_alive: 0`     | the model leaves memory: `unload` (`runtime.http.ollama.keep_alive`) |

What a model cannot do (call tools, think, see) is refused before it is loaded.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from models import sse
from models.messages import Event, ResponseStart
from registry.errors import BadRequest, EngineFailed
from registry.files.context import Ability
from registry.recipes.definition import Task
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Call, ChatPayload, Target
from runtime.http.bodies import decode
from runtime.http.dialect import (
    JSON,
    NDJSON,
    NO_BUFFERING,
    Endpoint,
    Head,
    ParsedRequest,
    Parts,
    read_engine_answer,
    read_engine_events,
    whole_answer,
)
from runtime.http.errors import Dialect
from runtime.http.ollama import translation
from runtime.http.ollama.answers import Answer, Timings, Writer, read
from runtime.http.ollama.bodies import OllamaBody, OllamaChatBody, OllamaGenerateBody

CHAT, GENERATE = "/api/chat", "/api/generate"


@dataclass(slots=True)
class OllamaRequest:
    path: str
    ollama_body: OllamaBody
    body: Mapping[str, Any] | None
    """vLLM's; None: only a load is asked for."""
    needs: Mapping[Ability, str]
    """What the model has to be able to do, and the field that asks for it."""
    watch: Timings = field(default_factory=Timings)
    warnings: Sequence[str] = ()
    room: Sequence[str] = ()
    """What is told of a context that is shorter than the client wants; of the last target that was asked."""

    def calls(self, context_length: int | None) -> Sequence[Call]:
        self.watch.turn = self.watch.clock()
        if self.body is None:
            return []
        room = translation.read(self.ollama_body.options).num_ctx
        is_short = room is not None and context_length is not None and room > context_length
        self.room = [f"num_ctx: the model's context has {context_length} tokens"] if is_short else []
        if "prompt" not in self.body:
            return [ChatPayload("/v1/chat/completions", self.body)]
        if "max_tokens" in self.body:
            return [ChatPayload("/v1/completions", self.body)]
        most = {} if context_length is None else {"max_tokens": context_length}  # where none is named there are 16
        return [ChatPayload("/v1/completions", {**self.body, **most}, fills=True)]

    async def render(self, target: Target, events: AsyncIterator[Event]) -> Parts:
        for ability, name in self.needs.items():
            if ability not in target.abilities:
                raise BadRequest(f"Model '{target.model}' {CANNOT[ability]}", param=name, code="unsupported_value")
        writer = Writer(self.ollama_body.model, self.path == CHAT, self.watch)
        if self.ollama_body.stream is False:
            parts = self._whole(writer, events)
        else:
            parts = self._lines(writer, events)
        try:
            async with aclosing(parts):
                async for part in parts:
                    yield part
        except BadRequest as error:
            error.message = translation.rename_fields(error.message)
            raise

    def _headers(self, started: ResponseStart) -> dict[str, str]:
        rename_fields = [
            *self.warnings,
            *self.room,
            *([translation.rename_fields(started.warning)] if started.warning else []),
        ]
        return {"X-Roundhouse-Warning": "; ".join(rename_fields)} if rename_fields else {}

    async def _whole(self, writer: Writer, events: AsyncIterator[Event]) -> Parts:
        started, data = await read_engine_answer(events)
        if started.status >= 400:
            read(data, started.status)
        answer = writer.only("load") if self.body is None else writer.whole_answer(data)
        async for part in whole_answer(msgspec.json.encode(answer), headers=self._headers(started)):
            yield part

    async def _lines(self, writer: Writer, events: AsyncIterator[Event]) -> Parts:
        """The head waits for the first line, so that an error before it keeps its status."""
        opened, started = False, ResponseStart(status=200, content_type="")
        async with aclosing(self._answers(writer, events)) as lines:
            async for line in lines:
                if isinstance(line, ResponseStart):
                    started = line
                    continue
                if not opened:
                    kind = JSON if self.body is None else NDJSON  # Ollama's answer to a load is no stream
                    yield Head(200, kind, {**NO_BUFFERING, **self._headers(started)})
                    opened = True
                yield msgspec.json.encode(line) + b"\n"

    async def _answers(
        self, writer: Writer, events: AsyncIterator[Event]
    ) -> AsyncGenerator[ResponseStart | Answer, None]:
        async with aclosing(read_engine_events(events, lambda status, data: read(data, status))) as lines:
            async for line in lines:
                if isinstance(line, ResponseStart):
                    yield line
                elif line != sse.DONE and (answer := writer.line(line)) is not None:
                    yield answer
        if self.body is None:
            yield writer.only("load")
            return
        if not writer.finished:
            raise EngineFailed("The answer ended before it was complete.")
        if (calls := writer.calls()) is not None:
            yield calls
        yield writer.last()


CANNOT: Mapping[Ability, str] = {
    Ability.TOOLS: "calls no tools: its recipe has no tool_call_parser. Leave 'tools' out.",
    Ability.THINKING: "does not think: its recipe has no reasoning_parser. Leave 'think' out.",
    Ability.VISION: "takes no images: it reads text only. Leave 'images' out.",
}


def _parsed(
    path: str, ollama_body: OllamaBody, body: Mapping[str, Any] | None, sees: bool, calls: bool
) -> ParsedRequest:
    needs = {Ability.TOOLS: ("tools", calls), Ability.THINKING: ("think", ollama_body.think not in (None, False)),
             Ability.VISION: ("images", sees)}  # fmt: skip
    request = OllamaRequest(
        path,
        ollama_body,
        body,
        {ability: name for ability, (name, is_requested) in needs.items() if is_requested},
        warnings=[f"{name}: not an option here" for name in translation.unused(ollama_body.options)],
    )
    model_ref = ModelRef(Task.CHAT, ollama_body.model)
    return ParsedRequest(
        model_ref, request.calls, request.render, Dialect.OLLAMA
    )  # its lines are no server-sent events


def _chat(body: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    ollama_body = decode(body, OllamaChatBody)
    sees = any(message.images for message in ollama_body.messages or ())
    return _parsed(
        CHAT,
        ollama_body,
        translation.chat(ollama_body) if ollama_body.messages else None,
        sees,
        bool(ollama_body.tools),
    )


def _generate(body: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    ollama_body = decode(body, OllamaGenerateBody)
    asks = translation.generation(ollama_body) if ollama_body.prompt else None
    return _parsed(GENERATE, ollama_body, asks, bool(ollama_body.images), calls=False)


ENDPOINTS = [Endpoint(CHAT, _chat, Dialect.OLLAMA), Endpoint(GENERATE, _generate, Dialect.OLLAMA)]
