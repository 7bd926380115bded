"""Ollama's request as vLLM's body: messages, tools, formats, and options under their names there."""

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from models.messages import THINK
from registry.errors import BadRequest
from runtime.http.bodies import convert
from runtime.http.ollama.bodies import (
    OF_THE_MACHINE,
    OllamaBody,
    OllamaChatBody,
    OllamaFunction,
    OllamaGenerateBody,
    OllamaMessage,
    OllamaOptions,
)

RENAMED = {
    "max_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
    "response_format": "format",
    "reasoning_effort": "think",
}
"""Fields in vLLM's messages, and what they are called here."""
_NAMED = re.compile(rf"\b({'|'.join(RENAMED)})\b")


def told(message: str) -> str:
    """What vLLM tells, under the names of this dialect."""
    return _NAMED.sub(lambda match: RENAMED[match[1]], message)


def chat(asked: OllamaChatBody) -> dict[str, Any]:
    """For /v1/chat/completions."""
    found: dict[str, Any] = {"messages": list(_messages(asked.messages or ())), **_shared(asked)}
    if asked.tools:
        found["tools"] = asked.tools
    return found


def generation(asked: OllamaGenerateBody) -> dict[str, Any]:
    """For /v1/chat/completions; of a raw prompt for /v1/completions."""
    asked.refuse()
    shared = _shared(asked)
    if asked.raw:
        return {"prompt": asked.prompt, **{name: value for name, value in shared.items() if name not in _OF_CHATS}}
    told = [OllamaMessage(role="system", content=asked.system)] if asked.system else []
    told.append(OllamaMessage(role="user", content=asked.prompt, images=asked.images))
    return {"messages": list(_messages(told)), **shared}


_PLAIN = re.compile(r"^[a-z0-9_]{1,40}\Z")
MOST_NAMED = 8
_OF_CHATS = ("reasoning_effort", "chat_template_kwargs", "logprobs", "top_logprobs")


def _shared(asked: OllamaBody) -> dict[str, Any]:
    stream = asked.stream is not False
    found: dict[str, Any] = {"model": asked.model, "stream": stream, **_options(read(asked.options))}
    if stream:
        found["stream_options"] = {"include_usage": True}
    if asked.format is not None and asked.format != "":
        found["response_format"] = _format(asked.format)
    if asked.think is False:
        found["reasoning_effort"] = "none"
    elif isinstance(asked.think, str):
        found["reasoning_effort"] = asked.think
    elif asked.think:
        found["chat_template_kwargs"] = THINK
    if asked.logprobs:
        found |= {"logprobs": True, "top_logprobs": asked.top_logprobs or 0}
    return found


def read(options: dict[str, Any] | None) -> OllamaOptions:
    """Raises BadRequest for a value that cannot be, with its place."""
    try:
        return convert({name: value for name, value in (options or {}).items() if value is not None}, OllamaOptions)
    except BadRequest as error:
        error.param = f"options.{error.param}" if error.param else "options"
        raise


def unused(options: dict[str, Any] | None) -> list[str]:
    """Options that an answer would depend on at Ollama, and does not here: the first few, as a header may hold them."""
    known = {*OllamaOptions.__struct_fields__, *OF_THE_MACHINE}
    names = sorted(name for name, value in (options or {}).items() if value is not None and name not in known)
    return [name if _PLAIN.match(name) else "a name of no option" for name in names[:MOST_NAMED]]


def _options(asked: OllamaOptions) -> dict[str, Any]:
    found: dict[str, Any] = {
        "max_tokens": asked.num_predict if asked.num_predict and asked.num_predict > 0 else None,
        "temperature": asked.temperature,
        "top_p": asked.top_p or None,
        "top_k": 1 if asked.top_p == 0 else asked.top_k,  # Ollama's cut leaves the likeliest token
        "min_p": asked.min_p,
        "repetition_penalty": asked.repeat_penalty,
        "presence_penalty": asked.presence_penalty,
        "frequency_penalty": asked.frequency_penalty,
        "seed": asked.seed if asked.seed is None or asked.seed >= 0 else None,  # below 0: a new one each time
        "stop": asked.stop,
    }
    if asked.typical_p not in (None, 1) and asked.temperature != 0:  # our logits processor cuts by all three in turn
        cuts = {"typical_top_k": found.pop("top_k") or 0, "typical_top_p": found.pop("top_p") or 1.0}
        found["vllm_xargs"] = {"typical_p": asked.typical_p, **cuts}
    return {name: value for name, value in found.items() if value is not None}


def _format(asked: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(asked, dict):
        return {"type": "json_schema", "json_schema": {"name": "format", "schema": asked}}
    if asked != "json":
        raise BadRequest("'format' is \"json\" or a JSON schema.", param="format")
    return {"type": "json_object"}


def _messages(asked: Sequence[OllamaMessage]) -> Iterator[dict[str, Any]]:
    """Ollama's calls may have no ids: they get one, and a result belongs to the first open call of its name."""
    open_: _Open = {}
    for index, message in enumerate(asked):
        told: dict[str, Any] = {"role": message.role, "content": _content(message)}
        if message.role == "assistant":
            if message.thinking:
                told["reasoning"] = message.thinking
            if message.tool_calls:
                calls = [(call.id or f"call_{index}_{at}", call.function) for at, call in enumerate(message.tool_calls)]
                told["tool_calls"] = [_call(id_, function) for id_, function in calls]
                open_ = _opened(calls)
        elif message.role == "tool":
            told["tool_call_id"] = message.tool_call_id or _answered(message, open_)
        yield told


def _call(id_: str, function: OllamaFunction) -> dict[str, Any]:
    arguments = msgspec.json.encode(function.arguments).decode()
    return {"id": id_, "type": "function", "function": {"name": function.name, "arguments": arguments}}


_Open = Mapping[str | None, deque[list[str]]]
"""Calls without a result by the function's name, and all of them by none: lists of one id, empty once it was taken."""


def _opened(calls: Sequence[tuple[str, OllamaFunction]]) -> _Open:
    found = defaultdict[str | None, deque[list[str]]](deque)
    for id_, function in calls:
        call = [id_]
        found[function.name].append(call)
        found[None].append(call)
    return found


def _answered(message: OllamaMessage, open_: _Open) -> str:
    waiting = open_.get(message.tool_name, deque())
    while waiting:
        if call := waiting.popleft():
            return call.pop()
    return f"call_{message.tool_name or 'unknown'}"


def _content(message: OllamaMessage) -> str | list[dict[str, Any]]:
    text = message.content or ""
    if not message.images:
        return text
    images = [{"type": "image_url", "image_url": {"url": _url(image)}} for image in message.images]
    return [{"type": "text", "text": text}, *images] if text else images


def _url(image: str) -> str:
    """Ollama's images are base64 without a type; what they are is read from their first bytes later."""
    return image if image.startswith("data:") else f"data:image/png;base64,{image}"
