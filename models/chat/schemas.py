"""Adapt vLLM's answers to the vendors' specifications.

Content from clients and models stays byte for byte. Answers of Messages and Responses contain objects from clients and
models, so they are changed field by field. Answers of Chat Completions contain none, so name-value pairs are replaced
in the text.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from cachetools import LRUCache
from msgspec import Raw

from models.chat.requests.request import RESPONSES, ChatRequest, begins
from registry.base.json import NOT_JSON
from registry.errors import BadRequest, RoundhouseError, by_status, short


class Renamer:
    """A filter that replaces the engine's `served` by `display_name`."""

    def __init__(self, served: str, display_name: str) -> None:
        self._pattern = re.compile(rb'("model"\s*:\s*)' + re.escape(json.dumps(served, ensure_ascii=False).encode()))
        self._display_name = json.dumps(display_name, ensure_ascii=False).encode()
        self._same = served == display_name
        self.overrides: Mapping[str, Raw] = {} if self._same else {"model": Raw(self._display_name)}
        """Overrides for answers with objects from clients and models, which may have a `model` of their own."""

    def __call__(self, data: bytes) -> bytes:
        """Rename in `data`, which contains only complete `"model":"..."` pairs.

        Objects from clients and models occur there only inside strings, where the quotes of such a pair are escaped.
        """
        if self._same:
            return data
        return self._pattern.sub(lambda match: match.group(1) + self._display_name, data)


NULL = msgspec.Raw(b"null")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_USUAL: LRUCache[tuple[object, bytes], msgspec.Raw] = LRUCache(4 << 20, lambda made: 2 * len(made))
"""Cache of fitted lists, by decoder and original bytes."""
_EVENT_NAME, _DATA = b"event: ", b"\ndata: "

Overrides = Mapping[str, msgspec.Raw]
"""Values by field that replace vLLM's in an answer, such as the model's name and the service class."""
_NOTHING: Overrides = {}


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """The shape of an object, or of each object of a list."""

    nullable: frozenset[str] = frozenset()
    """Fields that stay if they are null. All others are removed."""
    always: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    """Fields that must be present, with their values if vLLM leaves them out."""
    overrides: frozenset[str] = frozenset()
    """Fields that `Overrides` replace if present."""
    inner: Mapping[str, "ObjectShape"] = field(default_factory=dict)
    kinds: Mapping[bytes, "ObjectShape"] = field(default_factory=dict)
    """Shapes to use instead of this one, by the JSON of the field `type`."""
    usual: msgspec.json.Decoder[Any] | None = None
    """Decodes a list of such objects into structs without nulls in half the time, but refuses unknown fields. For lists
    that clients make long.
    """
    removed: frozenset[str] = frozenset()
    """Fields that are removed whatever their value."""


def fit(data: msgspec.Raw | bytes, shape: ObjectShape, overrides: Overrides = _NOTHING) -> Any:
    """Return an object to encode instead of `data`. One call for all objects, because calls dominate the cost."""
    match memoryview(data)[:1]:
        case b"[":
            if shape.usual is not None:
                return _fit_usual(bytes(data), shape)
            try:
                return [_fit_fields(item, shape, overrides) for item in _OBJECTS.decode(data)]
            except msgspec.ValidationError:  # a list of several kinds
                return [fit(one, shape, overrides) for one in _LIST.decode(data)]
        case b"{":
            return _fit_fields(_OBJECT.decode(data), shape, overrides)
        case _:
            return data


def _fit_usual(data: bytes, shape: ObjectShape) -> msgspec.Raw:
    """Fit a list that a client sends with each request and that several events of each answer repeat."""
    assert shape.usual is not None
    if (known := _USUAL.get((shape.usual, data))) is None:
        try:
            shaped_list = shape.usual.decode(data)
        except msgspec.ValidationError:
            shaped_list = fit(data, replace(shape, usual=None))
        known = msgspec.Raw(msgspec.json.encode(shaped_list))
        with suppress(ValueError):  # larger than the cache
            _USUAL[shape.usual, data] = known
    return known


def _fit_fields(fields: dict[str, Any], shape: ObjectShape, overrides: Overrides) -> dict[str, Any]:
    if shape.kinds:
        shape = shape.kinds.get(bytes(fields.get("type", NULL)), shape)
    result = {name: value for name, value in fields.items() if value != NULL or name in shape.nullable}
    for name in shape.removed & result.keys():
        del result[name]
    for name, inner in shape.inner.items():
        if (value := result.get(name, NULL)) != NULL:
            result[name] = fit(value, inner, overrides)
    for name, value in shape.always.items():
        result.setdefault(name, value)
    for name in shape.overrides & result.keys() & overrides.keys():
        result[name] = overrides[name]
    return result


def fit_events(
    data: bytes, whole: ObjectShape, of_event: Callable[[bytes], ObjectShape | None], overrides: Overrides
) -> bytes:
    """Fit a complete answer, or complete events. `of_event`: returns an event's shape by name; None for unchanged."""
    if not data.startswith(_EVENT_NAME):
        return msgspec.json.encode(fit(data, whole, overrides)) if data.startswith(b"{") else data
    return b"\n\n".join([_fit_event(one, of_event, overrides) for one in data.split(b"\n\n")])


def _fit_event(event: bytes, of_event: Callable[[bytes], ObjectShape | None], overrides: Overrides) -> bytes:
    name, separator, data = event.removeprefix(_EVENT_NAME).partition(_DATA)
    shape = of_event(name) if separator else None
    if shape is None:
        return event
    return _EVENT_NAME + name + _DATA + msgspec.json.encode(fit(msgspec.Raw(data), shape, overrides))


Fault = Callable[[], BadRequest | None]
"""Explains a failure of the engine on demand; returns None if it is the engine's own fault."""

_BEGIN = b'data: {"error":'
_ERRORS = re.compile(rb'^data: (\{"error":.*\})\r?$', re.MULTILINE)


class _ErrorBody(msgspec.Struct):
    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _ErrorEvent(msgspec.Struct):
    error: _ErrorBody


def fit_errors(data: bytes, fault: Fault) -> bytes:
    """Give each error a textual `code`, and shorten its message."""
    return _ERRORS.sub(lambda match: _fit_error(match, fault), data) if _BEGIN in data else data


def _fit_error(match: re.Match[bytes], fault: Fault) -> bytes:
    try:
        error = msgspec.json.decode(match[1], type=_ErrorEvent).error
    except NOT_JSON:
        return match[0]
    if error.code == RoundhouseError.status and (cause := fault()) is not None:
        error = _ErrorBody(cause.message, cause.type, cause.param, cause.code)
    elif isinstance(error.code, int):
        kind = by_status(error.code)
        error.type, error.code = kind.type, kind.code
    error.message = short(error.message)
    return b"data: " + msgspec.json.encode(_ErrorEvent(error))


NAMES = (
    "annotations", "audio", "completion_tokens_details", "function_call", "prompt_tokens_details", "reasoning",
    "service_tier",
)  # fmt: skip
PIECES = ("id", "name", "type")
"""Fields of a call in a stream that only its first chunk has."""
OWN = (
    "ec_transfer_params",
    "kv_transfer_params",
    "metrics",
    "prompt_logprobs",
    "prompt_text",
    "prompt_token_ids",
    "routed_experts",
    "token_ids",
)
"""vLLM's own fields, on request."""
_NULL = b'"(?:' + "|".join((*NAMES, *PIECES, *OWN)).encode() + b')":null'
_NULL_PAIRS = re.compile(b"," + _NULL + rb"|(?<=\{)(?:" + _NULL + b",?)+")
_LOGPROBS = b'"logprobs":{"content":'


def fit_completion(data: bytes, fault: Fault) -> bytes:
    """Remove these nulls. If there are logprobs, those of a refusal stay null, as always with vLLM."""
    return fit_errors(_NULL_PAIRS.sub(b"", data), fault).replace(_LOGPROBS, b'"logprobs":{"refusal":null,"content":')


_REASONING = re.compile(rb'"reasoning":("(?:[^"\\]++|\\.)*+")')
_REASONING_FIELDS = {
    "reasoning_content": rb'"reasoning_content":\1',
    "both": rb'"reasoning":\1,"reasoning_content":\1',
}


def name_reasoning(data: bytes, field: str) -> bytes:
    """Write the reasoning of Chat Completions to `reasoning_field` of the recipe.

    vLLM's own name is the default. With both names, clients that deserialise them into one field refuse the answer, and
    those that add up what they find show the text twice.
    """
    template = _REASONING_FIELDS.get(field)
    return data if template is None else _REASONING.sub(template, data)


_STOP = ("container", "stop_details", "stop_reason", "stop_sequence")
_TOKENS = ("cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens_details", "server_tool_use")
OVERRIDDEN = frozenset({"model", "request_id", "service_tier"})
USED = (*_TOKENS, "cache_creation", "inference_geo", "service_tier", "speed")


def _with(*names: str, **inner: ObjectShape) -> ObjectShape:
    return ObjectShape(frozenset(names), dict.fromkeys(names, NULL), OVERRIDDEN, inner)


BLOCK = ObjectShape(kinds={b'"thinking"': ObjectShape(always={"signature": Raw(b'""')})})
MESSAGE = _with("diagnostics", *_STOP, content=BLOCK, usage=_with(*USED))
EVENTS = {
    b"message_start": ObjectShape(inner={"message": MESSAGE}),
    b"content_block_start": ObjectShape(inner={"content_block": BLOCK}),
    b"message_delta": ObjectShape(inner={"delta": _with(*_STOP), "usage": _with("input_tokens", *_TOKENS)}),
    b"error": _with("request_id"),
}


_BROKEN, _API_ERROR = b'"error":{"type":"internal_error"', b'"error":{"type":"api_error"'
"""The error type for a broken stream in vLLM, and in Anthropic's API."""
_ERROR_EVENT = re.compile(rb'(?<=event: error\ndata: )\{.*"error":\{"type":"internal_error".*')


def fit_message(data: bytes, overrides: Overrides, fault: Fault) -> bytes:
    if b"event: error\n" in data:
        if _ERROR_EVENT.search(data) and (cause := fault()) is not None:
            error = {"type": "error", "error": {"type": cause.type, "message": cause.message}}
            body = msgspec.json.encode(error)
            data = _ERROR_EVENT.sub(lambda _: body, data)
        data = data.replace(_BROKEN, _API_ERROR)
    return fit_events(data, MESSAGE, EVENTS.get, overrides)


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
        return _NOTHING
    found: dict[str, msgspec.Raw] = {}
    for name in ECHOED:
        value, otherwise = request.fields.get(name, NULL), DEFAULTS.get(name)
        if isinstance(otherwise, dict) and begins(value, b"{"):
            given = {key: one for key, one in request.raw_object(name).items() if one != NULL}
            value = msgspec.Raw(msgspec.json.encode({**otherwise, **given}))
        elif value == NULL:
            value = msgspec.Raw(msgspec.json.encode(otherwise))
        found[name] = value
    if not request.items("tools"):  # vLLM reports "none" then
        found["tool_choice"] = request.fields.get("tool_choice", _AUTO)
    return found


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


_CHAT = re.compile(rb'("object":"chat\.completion(?:\.chunk)?",)')
ANTHROPICS = {"priority": b"priority", "default": b"standard", "flex": b"batch"}


def add_tier(data: bytes, tier: str) -> bytes:
    """Add OpenAI's `service_tier`. The pattern cannot match inside strings, where quotes are escaped."""
    return _CHAT.sub(rb'\1"service_tier":"' + tier.encode() + b'",', data)


def tier_override(path: str, tier: str) -> Mapping[str, Raw]:
    """Return the service class in the form of Messages and Responses; empty if none is reported."""
    word = ANTHROPICS.get(tier, b"") if path == "/v1/messages" else tier.encode()
    return {"service_tier": Raw(b'"' + word + b'"')} if word else {}


_FIELDS = {"/v1/messages": fit_message, "/v1/responses": fit_response}
"""Answers that contain objects from clients and models, so that overrides apply field by field."""
_PAIRS = {"/v1/chat/completions": fit_completion, "/v1/completions": fit_completion}
_SAME = Renamer("", "")


def fit_answer(
    path: str,
    data: bytes,
    tier: str = "",
    rename: Renamer = _SAME,
    fault: Fault = lambda: None,
    echoed: Overrides = _NOTHING,
    request_id: str = "",
    reasoning_field: str = "reasoning",
) -> bytes:
    """Fit `data`, a complete answer or complete events of a stream, to this path's vendor.

    Args:
        tier: the service class to report; '' for none.
        rename: inserts the client's name of the model.
        fault: explains why a stream broke.
        echoed: the request's fields that the answer repeats (`echo`).
        request_id: the id in an error in a stream of Messages; null if ''.
        reasoning_field: where an answer of Chat Completions has its reasoning (`name_reasoning`).
    """
    if (by_fields := _FIELDS.get(path)) is not None:
        named = {"request_id": Raw(msgspec.json.encode(request_id))} if request_id else {}
        return by_fields(data, {**echoed, **rename.overrides, **tier_override(path, tier), **named}, fault)
    if (by_pairs := _PAIRS.get(path)) is not None:
        data = name_reasoning(by_pairs(data, fault), reasoning_field)
    return rename(add_tier(data, tier) if tier and path == "/v1/chat/completions" else data)
