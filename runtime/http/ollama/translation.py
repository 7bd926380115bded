"""Translates Ollama's requests into vLLM's: messages, tools, formats and options."""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from models.messages import THINK
from registry.errors import BadRequest
from runtime.http.bodies import convert
from runtime.http.ollama.bodies import (
    LOAD_OPTIONS,
    OllamaBody,
    OllamaChatBody,
    OllamaFunction,
    OllamaGenerateBody,
    OllamaMessage,
    OllamaOptions,
)

NAMES = {
    "chat_template_kwargs": "think",
    "frequency_penalty": "options.frequency_penalty",
    "max_completion_tokens": "options.num_predict",
    "max_tokens": "options.num_predict",
    "min_p": "options.min_p",
    "presence_penalty": "options.presence_penalty",
    "reasoning_effort": "think",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "seed": "options.seed",
    "stop": "options.stop",
    "temperature": "options.temperature",
    "top_k": "options.top_k",
    "top_p": "options.top_p",
}
"""Names of fields in translated bodies, with their names in Ollama's."""


def chat(body: OllamaChatBody) -> dict[str, Any]:
    """The body for /v1/chat/completions."""
    result: dict[str, Any] = {"messages": list(_messages(body.messages or ())), **_shared(body)}
    if body.tools:
        result["tools"] = body.tools
    return result


def is_begun(body: OllamaBody) -> bool:
    """Whether the last message is the beginning of the answer, which Ollama continues."""
    if not isinstance(body, OllamaChatBody) or not body.messages:
        return False
    last = body.messages[-1]
    return last.role == "assistant" and bool(last.content) and not (last.tool_calls or last.images)


def generation(body: OllamaGenerateBody) -> dict[str, Any]:
    """The body for /v1/chat/completions, or for /v1/completions with a raw prompt."""
    body.refuse()
    shared = _shared(body)
    if body.raw:
        return {"prompt": body.prompt, **{name: value for name, value in shared.items() if name not in _CHAT_ONLY}}
    messages = [OllamaMessage(role="system", content=body.system)] if body.system else []
    messages.append(OllamaMessage(role="user", content=body.prompt, images=body.images))
    return {"messages": list(_messages(messages)), **shared}


_CHAT_ONLY = ("reasoning_effort", "chat_template_kwargs", "logprobs", "top_logprobs")


def _shared(body: OllamaBody) -> dict[str, Any]:
    stream = body.stream is not False
    result: dict[str, Any] = {"model": body.model, "stream": stream, **_options(read(body.options))}
    if stream:
        result["stream_options"] = {"include_usage": True}
    if body.format is not None and body.format != "":
        result["response_format"] = _format(body.format)
    if body.think is False:
        result["reasoning_effort"] = "none"
    elif isinstance(body.think, str):
        result["reasoning_effort"] = body.think
    elif body.think:
        result["chat_template_kwargs"] = THINK
    if body.logprobs:
        result |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return result


class _Options(msgspec.Struct):
    """Makes errors name the field as `options.…`."""

    options: OllamaOptions


def read(options: dict[str, Any] | None) -> OllamaOptions:
    """Decode the options. Raises BadRequest with the name of an invalid one."""
    given = {name: value for name, value in (options or {}).items() if value is not None}
    return convert({"options": given}, _Options).options


def unused(options: dict[str, Any] | None) -> list[str]:
    """Options that change an answer in Ollama but not here."""
    known = {*OllamaOptions.__struct_fields__, *LOAD_OPTIONS}
    return sorted(
        f"options.{name}" for name, value in (options or {}).items() if value is not None and name not in known
    )


def _options(options: OllamaOptions) -> dict[str, Any]:
    if options.typical_p not in (None, 1):
        raise BadRequest(
            "Typical decoding is not available: leave 'typical_p' out, and set 'top_p' or 'min_p' instead.",
            param="options.typical_p",
            code="unsupported_value",
        )
    result: dict[str, Any] = {
        "max_tokens": options.num_predict if options.num_predict and options.num_predict > 0 else None,
        "temperature": options.temperature,
        "top_p": options.top_p or None,
        "top_k": _top_k(options),
        "min_p": options.min_p,
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "seed": options.seed if options.seed is None or options.seed >= 0 else None,  # below 0: a random one
        "stop": options.stop,
    }
    return {name: value for name, value in result.items() if value is not None}


def _top_k(options: OllamaOptions) -> int | None:
    """vLLM's `top_k`. Ollama keeps only the likeliest token for a `top_p` of 0, and all for a `top_k` of at most 0."""
    if options.top_p == 0:
        return 1
    return None if options.top_k is None else max(0, options.top_k)


def _format(format_: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(format_, dict):
        return {"type": "json_schema", "json_schema": {"name": "format", "schema": format_}}
    if format_ != "json":
        raise BadRequest("'format' is \"json\" or a JSON schema.", param="format")
    return {"type": "json_object"}


def _messages(messages: Sequence[OllamaMessage]) -> Iterator[dict[str, Any]]:
    """Messages in OpenAI's format.

    Calls without ids get one, and a result is assigned to the first open call of its function.
    """
    open_: _Open = {}
    for index, message in enumerate(messages):
        converted: dict[str, Any] = {"role": message.role, "content": _content(message)}
        if message.role == "assistant":
            if message.thinking:
                converted["reasoning"] = message.thinking
            if message.tool_calls:
                calls = [(call.id or f"call_{index}_{at}", call.function) for at, call in enumerate(message.tool_calls)]
                converted["tool_calls"] = [_call(id_, function) for id_, function in calls]
                open_ = _opened(calls)
        elif message.role == "tool":
            converted["tool_call_id"] = message.tool_call_id or _answered(message, open_)
        yield converted


def _call(id_: str, function: OllamaFunction) -> dict[str, Any]:
    arguments = msgspec.json.encode(function.arguments).decode()
    return {"id": id_, "type": "function", "function": {"name": function.name, "arguments": arguments}}


_Open = Mapping[str | None, deque[list[str]]]
"""Open calls by function name, and all under None, as lists of one id that are emptied by the call's result."""


def _opened(calls: Sequence[tuple[str, OllamaFunction]]) -> _Open:
    result = defaultdict[str | None, deque[list[str]]](deque)
    for id_, function in calls:
        call = [id_]
        result[function.name].append(call)
        result[None].append(call)
    return result


def _answered(message: OllamaMessage, open_: _Open) -> str:
    waiting = open_.get(message.tool_name, deque())
    while waiting:
        if call := waiting.popleft():
            return call.pop()
    return f"call_{message.tool_name or 'unknown'}"


def _content(message: OllamaMessage) -> str | list[dict[str, Any]]:
    """Put each image where the text has the next `[img]`, and the others before the text, as Ollama does."""
    text = message.content or ""
    if not message.images:
        return text
    images: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": _url(image)}} for image in message.images
    ]
    texts = [{"type": "text", "text": part} for part in text.split("[img]", len(images))]
    marks = len(texts) - 1
    parts = [*images[marks:], texts[0], *chain.from_iterable(zip(images[:marks], texts[1:], strict=True))]
    return [part for part in parts if part.get("text") != ""]


def _url(image: str) -> str:
    """A data URL for an image. Ollama's are base64 without a type, which is later detected from the first bytes.

    Ollama reads over line breaks, which many programs write into base64.
    """
    encoded = image.replace("\n", "").replace("\r", "")
    return encoded if encoded.startswith("data:") else f"data:image/png;base64,{encoded}"
