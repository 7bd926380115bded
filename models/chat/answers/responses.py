"""Fit answers of Responses."""

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import Raw

from models.chat.answers.shapes import NOTHING, NULL, OVERRIDDEN, Fault, ObjectShape, Overrides, fit_events
from models.chat.requests.request import RESPONSES, ChatRequest, begins

ALWAYS = (
    "access_programs", "completed_at", "error", "incomplete_details", "instructions", "max_output_tokens",
    "max_tool_calls", "previous_response_id", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "temperature", "top_p",
)  # fmt: skip
DEFAULTS: Mapping[str, Any] = {
    "background": False,
    "metadata": {},
    "reasoning": {"effort": None, "summary": None},
    "store": False,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "top_logprobs": 0,
}
"""OpenAI's values in answers for fields that the request left out."""
ECHOED = (
    "max_output_tokens", "max_tool_calls", "metadata", "previous_response_id", "prompt_cache_key",
    "prompt_cache_retention", "reasoning", "safety_identifier", "text", "top_logprobs",
)  # fmt: skip
"""Fields of a request to Responses that its answer repeats. vLLM lacks some of them and changes others."""
_AUTO = Raw(b'"auto"')


def echo(request: ChatRequest) -> Overrides:
    """Return the request's fields that an answer of Responses repeats, without hints; empty for other paths."""
    if request.path != RESPONSES:
        return NOTHING
    fields: dict[str, msgspec.Raw] = {}
    for name in ECHOED:
        value, otherwise = request.fields.get(name, NULL), DEFAULTS.get(name)
        if isinstance(otherwise, dict) and begins(value, b"{"):
            given = {key: one for key, one in request.raw_object(name).items() if one != NULL}
            value = msgspec.Raw(msgspec.json.encode({**otherwise, **given}))
        elif value == NULL:
            value = msgspec.Raw(msgspec.json.encode(otherwise))
        fields[name] = value
    if not request.items("tools"):  # vLLM reports "none" then
        fields["tool_choice"] = request.fields.get("tool_choice", _AUTO)
    return fields


class Tool(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="function"):
    """A function tool, returned as it was sent. 128 of them are most of an answer.

    A tool with an `output_schema` is decoded field by field instead.
    """

    name: str
    parameters: msgspec.Raw
    strict: bool | None
    description: str | None = None
    allowed_callers: list[str] | None = None
    async_: bool | None = None
    defer_loading: bool | None = None
    output_schema: None = None


ITEM = ObjectShape(
    nullable=frozenset({"call_id", "code", "environment", "max_output_length", "outputs", "result"}),
    inner={"content": ObjectShape()},
)
COUNTS = ObjectShape(
    removed=frozenset({f"{kind}_tokens_per_turn" for kind in ("cached", "input", "output", "tool_output")})
)
"""vLLM's lists for tools that it calls itself, which never happens here. OpenAI's Agents SDK for JavaScript takes only
numbers.
"""
RESPONSE = ObjectShape(
    nullable=frozenset(ALWAYS),
    always={
        **dict.fromkeys(ALWAYS, NULL),
        **{name: Raw(msgspec.json.encode(value)) for name, value in DEFAULTS.items()},
    },
    overrides=OVERRIDDEN.union(ECHOED, {"tool_choice"}),
    inner={
        "output": ITEM,
        "usage": ObjectShape(inner={"input_tokens_details": COUNTS, "output_tokens_details": COUNTS}),
        "tools": ObjectShape(frozenset({"parameters", "strict"}), usual=msgspec.json.Decoder(list[Tool])),
    },
)
COMPLETED = replace(RESPONSE, overrides=RESPONSE.overrides | {"completed_at"})
EVENT = ObjectShape(
    nullable=frozenset({"annotation", "code", "param"}),
    inner={"item": ITEM, "part": ObjectShape(), "response": RESPONSE},
)
LAST_EVENT = replace(EVENT, inner={**EVENT.inner, "response": COMPLETED})


_COMPLETED_LINE = b"event: response.completed\n"
_COMPLETED = re.compile(_COMPLETED_LINE + rb"data: (.*)")


class _Status(msgspec.Struct):
    status: str = ""


class _LastEvent(msgspec.Struct):
    response: _Status


def fit_response(data: bytes, overrides: Overrides, _: Fault) -> bytes:
    """Fit Responses. Failures in such a stream are raised, so there are no error events."""
    if data.startswith(b"{") or _COMPLETED_LINE in data:
        overrides = {**overrides, "completed_at": Raw(str(int(time.time())).encode())}
    is_completed = data.startswith(b"{") and msgspec.json.decode(data, type=_Status).status == "completed"
    answer = fit_events(data, COMPLETED if is_completed else RESPONSE, _of_event, overrides)
    return _COMPLETED.sub(_rename_last, answer) if _COMPLETED_LINE in answer else answer


def _rename_last(match: re.Match[bytes]) -> bytes:
    """Rename the last event of a truncated answer, for which OpenAI has another name than vLLM."""
    if msgspec.json.decode(match[1], type=_LastEvent).response.status != "incomplete":
        return match[0]
    event = msgspec.json.decode(match[1], type=dict[str, msgspec.Raw])
    event["type"] = msgspec.Raw(b'"response.incomplete"')
    response = msgspec.json.decode(event["response"], type=dict[str, msgspec.Raw]) | {"completed_at": NULL}
    event["response"] = msgspec.Raw(msgspec.json.encode(response))
    return b"event: response.incomplete\ndata: " + msgspec.json.encode(event)


def _of_event(name: bytes) -> ObjectShape | None:
    """Return the shape of an event; None for a text delta, which is a string and never null."""
    if name.endswith(b".delta"):
        return None
    return LAST_EVENT if name == b"response.completed" else EVENT
