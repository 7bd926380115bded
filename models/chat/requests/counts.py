"""How many things a request may hold, who may speak in it, and what only an engine may say to itself."""

from collections.abc import Mapping
from typing import Any

import msgspec

from registry.errors import BadRequest
from registry.limits import Limits

INTERNAL = ("data_parallel_rank", "ec_transfer_params", "kv_hints", "kv_transfer_params", "priority")
"""What engines tell one another, or who is served first: not for a client to say."""
ROLES = frozenset({"assistant", "developer", "function", "system", "tool", "user"})
CHATTING = frozenset({"/v1/chat/completions"})


class _Message(msgspec.Struct):
    role: Any = None


def check(path: str, body: bytes, context_length: int, limits: Limits) -> None:
    """Raise BadRequest with the field of `body`, a JSON object, that holds too much, or what is not a client's."""
    data: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    _internal(data, limits)
    for name, most in (("stop", limits.stops), ("stop_sequences", limits.stops), ("tools", limits.tools)):
        _within(_items(data, name), most, name)
    for name in ("messages", "input"):
        _within(_items(data, name), min(max(limits.messages_least, context_length), limits.messages), name)
        _parts(data, name, limits)
    if "logit_bias" in data:
        try:
            biases = msgspec.json.decode(data["logit_bias"], type=dict[str, msgspec.Raw] | None)
        except msgspec.ValidationError:
            biases = None  # vLLM says what is wrong with them
        _within(len(biases or ()), limits.biases, "logit_bias")
    if "prompt_logprobs" in data:
        _within(_number(data, "n", 1) * _number(data, "prompt_logprobs", 0), limits.prompt_logprobs, "prompt_logprobs")
    if path in CHATTING:
        _roles(data)


def _internal(data: Mapping[str, msgspec.Raw], limits: Limits) -> None:
    for name in INTERNAL:
        if name in data and bytes(data[name]) not in (b"null", b"0"):
            raise BadRequest(f"{name} is not for clients to set: leave it out.", param=name, code="unsupported_value")
    raw = bytes(data.get("request_id", b""))
    asked = msgspec.json.decode(raw, type=str) if raw[:1] == b'"' else ""
    if not (asked.isprintable() and len(asked) <= limits.request_id_letters):
        raise BadRequest(
            f"A request_id is one line of up to {limits.request_id_letters} printable characters.",
            param="request_id",
            code="invalid_value",
        )


def _items(data: Mapping[str, msgspec.Raw], name: str) -> int:
    raw = bytes(data.get(name, b""))
    return len(msgspec.json.decode(raw, type=list[msgspec.Raw])) if raw[:1] == b"[" else 0


def _number(data: Mapping[str, msgspec.Raw], name: str, otherwise: int) -> int:
    try:
        return abs(msgspec.json.decode(data.get(name, b""), type=int))
    except msgspec.DecodeError:
        return otherwise  # vLLM says what is wrong with it


class _Spoken(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"null")


def _parts(data: Mapping[str, msgspec.Raw], name: str, limits: Limits) -> None:
    raw, total = bytes(data.get(name, b"")), 0
    for index, item in enumerate(msgspec.json.decode(raw, type=list[msgspec.Raw]) if raw[:1] == b"[" else ()):
        if bytes(item)[:1] != b"{":
            continue  # vLLM says what is wrong with it
        content = msgspec.json.decode(item, type=_Spoken).content
        _within(count := _items({"content": content}, "content"), limits.parts, f"{name}[{index}].content")
        total += count
    _within(total, limits.parts_all, f"{name}[].content")


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
