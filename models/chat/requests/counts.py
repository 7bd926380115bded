"""How many things a request may hold, who may speak in it, and what only an engine may say to itself."""

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from models.chat.requests.tokens import FIELDS
from registry.bounds import Bounds
from registry.errors import BadRequest

INTERNAL = ("data_parallel_rank", "ec_transfer_params", "kv_hints", "kv_transfer_params", "priority", "use_beam_search")
"""What engines tell one another, or who is served first: not for a client to say. vLLM's beams have no priority."""
OTHERS = frozenset(
    {
        "bad_words", "chat_template_kwargs", "documents", "include", "media_io_kwargs", "metadata",
        "mm_processor_kwargs", "stop_token_ids", "vllm_xargs",
    }
)  # fmt: skip
"""Lists and objects that vLLM goes through one by one on the loop that feeds all streams."""
ROLES = frozenset({"assistant", "developer", "function", "system", "tool", "user"})
_WHOLE = TypeAdapter(int)
"""A number as vLLM reads it: '5' and 5.0 are 5 to it."""
_BOOLEANS = (b"true", b"false")
CHATTING = frozenset({"/v1/chat/completions"})


class _Message(msgspec.Struct):
    role: Any = None


def check(path: str, body: bytes, context_length: int, bounds: Bounds) -> None:
    """Raise BadRequest with the field of `body`, a JSON object, that holds too much, or what is not a client's."""
    data: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    _internal(data, bounds)
    for name, most in (("stop", bounds.stops), ("stop_sequences", bounds.stops), ("tools", bounds.tools)):
        _within(_items(data, name), most, name)
    for name in ("messages", "input"):
        _within(_items(data, name), min(max(bounds.messages_least, context_length), bounds.messages), name)
        _parts(data, name, bounds)
    for name in OTHERS & data.keys():
        _within(_entries(data, name), bounds.entries, name)
    _answers(data, context_length, bounds)
    if "repetition_detection" in data:
        _pattern(data["repetition_detection"], bounds)
    if "logit_bias" in data:
        _within(_entries(data, "logit_bias"), bounds.biases, "logit_bias")
    if bytes(data.get("echo", b"null")) not in (b"null", b"0", b"false") and "logprobs" in data:
        _within(_number(data, "n", 1) * _number(data, "logprobs", 0), bounds.prompt_logprobs, "logprobs")
    if "prompt_logprobs" in data:
        _within(_number(data, "n", 1) * _number(data, "prompt_logprobs", 0), bounds.prompt_logprobs, "prompt_logprobs")
    if path in CHATTING:
        _roles(data)


def _answers(data: Mapping[str, msgspec.Raw], context_length: int, bounds: Bounds) -> None:
    """How many there are to be, and how much is to be told of their tokens at once."""
    answers = _prompts(data) * _number(data, "n", 1)
    if answers > bounds.answers:
        raise BadRequest(
            f"This request is for {answers} answers; up to {bounds.answers} are given. Send it in parts.",
            param="n" if "n" in data else "prompt",
            code="too_many_entries",
        )
    name = "top_logprobs" if "top_logprobs" in data else "logprobs"
    tokens = min((_number(data, field, context_length) for field in FIELDS), default=context_length)
    logprobs = answers * _number(data, name, 0) * min(tokens, context_length)
    if logprobs > bounds.logprobs and bytes(data.get("stream", b"")) != b"true":
        raise BadRequest(
            f"This request is for up to {logprobs} logprobs in one piece; up to {bounds.logprobs} are given. Ask for a "
            "stream, or for fewer answers, tokens ('max_tokens') or logprobs.",
            param=name,
            code="too_many_entries",
        )


def _pattern(raw: msgspec.Raw, bounds: Bounds) -> None:
    detection = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]) if bytes(raw)[:1] == b"{" else {}
    if _number(detection, "max_pattern_size", 0) > bounds.repetition_pattern:
        raise BadRequest(
            f"Patterns of up to {bounds.repetition_pattern} tokens are looked for.",
            param="repetition_detection.max_pattern_size",
            code="invalid_value",
        )


def _internal(data: Mapping[str, msgspec.Raw], bounds: Bounds) -> None:
    for name in INTERNAL:
        if name in data and bytes(data[name]) not in (b"null", b"0", b"false"):
            raise BadRequest(f"{name} is not for clients to set: leave it out.", param=name, code="unsupported_value")
    raw = bytes(data.get("request_id", b""))
    request_id = msgspec.json.decode(raw, type=str) if raw[:1] == b'"' else ""
    if not (request_id.isprintable() and len(request_id) <= bounds.request_id_letters):
        raise BadRequest(
            f"A request_id is one line of up to {bounds.request_id_letters} printable characters.",
            param="request_id",
            code="invalid_value",
        )


def _items(data: Mapping[str, msgspec.Raw], name: str) -> int:
    raw = bytes(data.get(name, b""))
    return len(msgspec.json.decode(raw, type=list[msgspec.Raw])) if raw[:1] == b"[" else 0


def _entries(data: Mapping[str, msgspec.Raw], name: str) -> int:
    """Of a list or an object; 0 for what is neither, of which vLLM says what is wrong."""
    raw = bytes(data[name])
    return len(msgspec.json.decode(raw, type=dict[str, msgspec.Raw])) if raw[:1] == b"{" else _items(data, name)


def _prompts(data: Mapping[str, msgspec.Raw]) -> int:
    """A list of numbers is one prompt, of tokens."""
    raw = bytes(data.get("prompt", b""))
    listed = msgspec.json.decode(raw, type=list[msgspec.Raw]) if raw[:1] == b"[" else []
    return len(listed) if listed and bytes(listed[0])[:1] in (b'"', b"[", b"{") else 1


def _number(data: Mapping[str, msgspec.Raw], name: str, otherwise: int) -> int:
    raw = bytes(data.get(name, b""))
    if raw in _BOOLEANS:  # such as logprobs of Chat Completions
        return otherwise
    try:
        return abs(_WHOLE.validate_json(raw))
    except ValidationError:
        return otherwise  # vLLM says what is wrong with it


class _Spoken(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"null")


def _parts(data: Mapping[str, msgspec.Raw], name: str, bounds: Bounds) -> None:
    raw, total = bytes(data.get(name, b"")), 0
    for index, item in enumerate(msgspec.json.decode(raw, type=list[msgspec.Raw]) if raw[:1] == b"[" else ()):
        if bytes(item)[:1] != b"{":
            continue  # vLLM says what is wrong with it
        content = msgspec.json.decode(item, type=_Spoken).content
        _within(count := _items({"content": content}, "content"), bounds.parts, f"{name}[{index}].content")
        total += count
    _within(total, bounds.parts_all, f"{name}[].content")


def _within(count: int, most: int, name: str) -> None:
    if count > most:
        raise BadRequest(f"'{name}' has {count} entries; up to {most} are taken.", param=name, code="too_many_entries")


def _roles(data: Mapping[str, msgspec.Raw]) -> None:
    try:
        messages = msgspec.json.decode(data.get("messages", b"[]"), type=list[_Message])
    except msgspec.ValidationError:
        return  # vLLM says what is wrong with them
    for index, message in enumerate(messages):
        if isinstance(message.role, str) and message.role not in ROLES:
            raise BadRequest(
                f"{message.role[:50]!r} is no role of a message. Use one of: {', '.join(sorted(ROLES))}.",
                param=f"messages[{index}].role",
                code="invalid_value",
            )
