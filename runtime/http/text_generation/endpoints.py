"""Text generation in TGI's and LoRAX's dialect, based on vLLM's completions.

| path             | answer                | with `stream: true` | return_full_text by default |
|------------------|-----------------------|---------------------|-----------------------------|
| /generate        | an object             | a stream            | false                       |
| /generate_stream | a stream              | a stream            | false                       |
| /                | a list of one object  | a stream            | true                        |

The model is `?model=` or `model` in the body, else the only chat model. `parameters.adapter_id` names one of its
adapters or, if no model is named and there are several, an adapter of any model. Errors have `error` and `error_type`,
with status 422 for invalid requests. Unknown fields are ignored with a warning.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import NoReturn

import msgspec

from models.messages import Event
from models.tasks.chat import ChatPayload
from registry.base.json import NOT_JSON
from registry.errors import BadRequest, EngineFailed
from registry.recipes.definition import Task
from runtime.gateway.names import ModelRef
from runtime.http.bodies import decode_known, refuse_adapters
from runtime.http.chat.answers import EngineError, read_engine_answer, read_engine_events
from runtime.http.dialect import (
    EVENT_STREAM,
    NO_BUFFERING,
    Endpoint,
    Head,
    ParsedRequest,
    Parts,
    whole_answer,
)
from runtime.http.errors import Dialect
from runtime.http.route import RouteGroup
from runtime.http.schema import INFERENCE, JSON, STREAM, Json
from runtime.http.text_generation import answers
from runtime.http.text_generation.answers import GeneratedText
from runtime.http.text_generation.bodies import GenerateBody, Generation, generation

ENGINE_PATH = "/v1/completions"
_OTHERS = (
    " It is the prompt, as in Text Generation Inference. SGLang's `text` goes to /v1/completions, as `prompt`; texts "
    "that become vectors go to /embed."
)
"""Says which call here takes what other servers take at these paths."""


async def _whole(path: str, request: Generation, events: AsyncIterator[Event]) -> Parts:
    whole = answers.whole_answer(request, await read_engine_answer(events, _refuse))
    answer = msgspec.json.encode([whole] if path == "/" else whole)
    async for part in whole_answer(answer):
        yield part


async def _stream(request: Generation, events: AsyncIterator[Event]) -> Parts:
    """Yield an event per token. The head waits for the first one, so that errors keep their status."""
    opened, stream = False, answers.Stream(request)
    async with aclosing(read_engine_events(events, _refuse)) as lines:
        async for line in lines:
            if not (stream_events := stream.feed(line)):
                continue
            if not opened:
                yield Head(200, EVENT_STREAM, NO_BUFFERING)
                opened = True
            yield b"".join(b"data:%s\n\n" % msgspec.json.encode(event) for event in stream_events)
    if not stream.finished:
        raise EngineFailed("The answer ended before it was complete.")


def _refuse(status: int, data: bytes) -> NoReturn:
    try:
        error = msgspec.json.decode(data, type=answers.EngineCompletion).error
    except NOT_JSON:
        error = None
    raise answers.engine_error(status, error or EngineError("The engine refused this request."))


def _endpoint(path: str) -> Endpoint:
    def parse(body: bytes, query: Mapping[str, str]) -> ParsedRequest:
        try:
            given, left_out = decode_known(body, GenerateBody)
        except BadRequest as error:
            if error.param == "inputs":
                error.message += _OTHERS
            raise
        refuse_adapters(left_out, "'parameters.adapter_id'")
        streams = path == "/generate_stream" or bool(given.stream)
        request = generation(given, stream=streams, full_text=path == "/")
        name, adapter = given.model or query.get("model"), request.parameters.adapter_id
        fills = request.parameters.max_new_tokens is None
        return ParsedRequest(
            ModelRef(Task.CHAT, name, adapter or None, optional=True),
            calls=lambda context_length: [ChatPayload(ENGINE_PATH, request.completion(context_length), fills)],
            render=lambda _, events: _stream(request, events) if streams else _whole(path, request, events),
            dialect=Dialect.TGI,
            stream=streams,
            left_out=left_out,
        )

    return Endpoint(path, parse, Dialect.TGI)


_route = partial(
    RouteGroup("Generate").endpoint,
    body=GenerateBody,
    parameters=("Prefer", "Progress", "Model"),
    errors=(*INFERENCE, 422),
)
_TEXT = (
    "`inputs` goes to the model as it is: no chat template is applied. `model` may be left out where there is one chat "
    "model; `parameters.adapter_id` names an adapter of it."
)
_PROMPT = "<|user|>turn on the lamp<|end|><|assistant|>"
_GREEDY: Json = {"inputs": _PROMPT, "model": "starter-chat", "parameters": {"max_new_tokens": 64}}
ENDPOINTS = [
    _route(
        _endpoint("/generate"),
        id="generate",
        summary="Generate text (Text Generation Inference, LoRAX)",
        description=_TEXT,
        answer={JSON: GeneratedText, **STREAM},
        examples={
            "greedy": _GREEDY,
            "adapter": {**_GREEDY, "parameters": {"max_new_tokens": 64, "adapter_id": "uppercase", "details": True}},
        },
    ),
    _route(
        _endpoint("/generate_stream"),
        id="generateStream",
        summary="Generate text as a stream (Text Generation Inference, LoRAX)",
        description=_TEXT,
        answer=STREAM,
        examples={"greedy": _GREEDY},
    ),
    _route(
        _endpoint("/"),
        id="generateCompatible",
        summary="Generate text, as a list of one or a stream (Text Generation Inference, LoRAX)",
        description=f"{_TEXT} `return_full_text` is true by default.",
        answer={JSON: [GeneratedText], **STREAM},
        examples={"greedy": _GREEDY},
    ),
]
