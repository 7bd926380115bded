"""vLLM's answers as the vendors' specifications have them: no null where none may be, and nothing missing.

What clients and models wrote stays byte for byte. Answers of Messages and Responses hold objects of clients and models,
so they are changed field by field; answers of Chat Completions hold none, so pairs of name and value are replaced.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from cachetools import LRUCache
from msgspec import Raw

from registry.base.json import NOT_JSON
from registry.errors import BadRequest, RoundhouseError, by_status, short


class Renamer:
    """Puts `display_name` where the engine wrote `served`."""

    def __init__(self, served: str, display_name: str) -> None:
        self._pattern = re.compile(rb'("model"\s*:\s*)' + re.escape(json.dumps(served, ensure_ascii=False).encode()))
        self._display_name = json.dumps(display_name, ensure_ascii=False).encode()
        self._same = served == display_name
        self.overrides: Mapping[str, Raw] = {} if self._same else {"model": Raw(self._display_name)}
        """For answers that hold objects of others, which may have a `model` too: by the field (`shape`)."""

    def __call__(self, data: bytes) -> bytes:
        """`data` holds whole `"model":"..."` pairs, and no JSON object of a client's or model's but inside a string:
        there the quotes of such a pair are escaped."""
        if self._same:
            return data
        return self._pattern.sub(lambda match: match.group(1) + self._display_name, data)


NULL = msgspec.Raw(b"null")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_USUAL: LRUCache[tuple[object, bytes], msgspec.Raw] = LRUCache(4 << 20, lambda made: 2 * len(made))
"""By who reads them: lists as they came, and what became of them."""
_EVENT_NAME, _DATA = b"event: ", b"\ndata: "

Overrides = Mapping[str, msgspec.Raw]
"""What stands in an answer in place of what vLLM wrote, by the field: the name of the model, the service class."""
_NOTHING: Overrides = {}


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """Of an object, or of each object of a list."""

    nullable: frozenset[str] = frozenset()
    """Fields that stay when they are null. All others go then."""
    always: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    """Fields that are there in any case, and what they are where vLLM leaves them out."""
    overrides: frozenset[str] = frozenset()
    """Fields that hold what the call tells (`Overrides`), where they are there."""
    inner: Mapping[str, "ObjectShape"] = field(default_factory=dict)
    kinds: Mapping[bytes, "ObjectShape"] = field(default_factory=dict)
    """By the JSON of the field `type`: the shape in place of this one."""
    usual: msgspec.json.Decoder[Any] | None = None
    """Reads a list of such objects as structs that leave out what must not be null; refuses what it does not know. For
    lists that clients make long: half the time."""


def fit(data: msgspec.Raw | bytes, shape: ObjectShape, overrides: Overrides = _NOTHING) -> Any:
    """What is to be encoded in place of `data`: all of it at once, since a call for each object is what costs."""
    match memoryview(data)[:1]:
        case b"[":
            if shape.usual is not None:
                return _fit_usual(bytes(data), shape)
            try:
                return [_fit_fields(item, shape, overrides) for item in _OBJECTS.decode(data)]
            except msgspec.ValidationError:  # of several kinds
                return [fit(one, shape, overrides) for one in _LIST.decode(data)]
        case b"{":
            return _fit_fields(_OBJECT.decode(data), shape, overrides)
        case _:
            return data


def _fit_usual(data: bytes, shape: ObjectShape) -> msgspec.Raw:
    """A client sends the same list with each request, and finds it in several events of each answer."""
    assert shape.usual is not None
    if (known := _USUAL.get((shape.usual, data))) is None:
        try:
            shaped_list = shape.usual.decode(data)
        except msgspec.ValidationError:
            shaped_list = fit(data, replace(shape, usual=None))
        known = msgspec.Raw(msgspec.json.encode(shaped_list))
        with suppress(ValueError):  # larger than all that is kept
            _USUAL[shape.usual, data] = known
    return known


def _fit_fields(fields: dict[str, Any], shape: ObjectShape, overrides: Overrides) -> dict[str, Any]:
    if shape.kinds:
        shape = shape.kinds.get(bytes(fields.get("type", NULL)), shape)
    result = {name: value for name, value in fields.items() if value != NULL or name in shape.nullable}
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
    """An answer, or whole events of one. `of_event`: the shape of an event of this name; None: it is right as it is."""
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
"""What a failure of the engine means; None: the engine's own fault. Asked when there is one."""

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
    """The same with a word as `code` of each error, and with a message that is no longer than ours."""
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


NAMES = ("annotations", "completion_tokens_details", "function_call", "prompt_tokens_details", "service_tier")
PIECES = ("id", "name", "type")
"""Of a call in a stream, that only its first piece has."""
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
"""vLLM's own, for those who ask for them."""
_NULL = b'"(?:' + "|".join((*NAMES, *PIECES, *OWN)).encode() + b')":null'
_NULL_PAIRS = re.compile(b"," + _NULL + rb"|(?<=\{)(?:" + _NULL + b",?)+")
_LOGPROBS = b'"logprobs":{"content":'


def fit_completion(data: bytes, fault: Fault) -> bytes:
    """Without these nulls; where there are logprobs, those of a refusal are null, as always with vLLM."""
    return fit_errors(_NULL_PAIRS.sub(b"", data), fault).replace(_LOGPROBS, b'"logprobs":{"refusal":null,"content":')


_STOP = ("container", "stop_details", "stop_reason", "stop_sequence")
_TOKENS = ("cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens_details", "server_tool_use")
OVERRIDDEN = frozenset({"model", "service_tier"})
USED = (*_TOKENS, "cache_creation", "inference_geo", "service_tier", "speed")


def _with(*names: str, **inner: ObjectShape) -> ObjectShape:
    return ObjectShape(frozenset(names), dict.fromkeys(names, NULL), OVERRIDDEN, inner)


BLOCK = ObjectShape(kinds={b'"text"': _with("citations"), b'"thinking"': ObjectShape(always={"signature": Raw(b'""')})})
MESSAGE = _with("diagnostics", *_STOP, content=BLOCK, usage=_with(*USED))
EVENTS = {
    b"message_start": ObjectShape(inner={"message": MESSAGE}),
    b"content_block_start": ObjectShape(inner={"content_block": BLOCK}),
    b"message_delta": ObjectShape(inner={"delta": _with(*_STOP), "usage": _with("input_tokens", *_TOKENS)}),
}


_BROKEN, _API_ERROR = b'"error":{"type":"internal_error"', b'"error":{"type":"api_error"'
"""vLLM's word for what broke in a stream, and Anthropic's."""
_ERROR_EVENT = re.compile(rb'(?<=event: error\ndata: )\{.*"error":\{"type":"internal_error".*')


def fit_message(data: bytes, overrides: Overrides, fault: Fault) -> bytes:
    if b"event: error\n" in data:
        if _ERROR_EVENT.search(data) and (cause := fault()) is not None:
            error = {"type": "error", "error": {"type": cause.type, "message": cause.message}}
            body = msgspec.json.encode(error)
            data = _ERROR_EVENT.sub(lambda _: body, data)
        data = data.replace(_BROKEN, _API_ERROR)
    return fit_events(data, MESSAGE, EVENTS.get, overrides)


_ALWAYS = ("access_programs", "error", "incomplete_details", "instructions", "metadata", "temperature", "top_p")


class Tool(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="function"):
    """Given back as it was sent: 128 of them are most of an answer. With an `output_schema`, a client's, they are
    read the other way."""

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
RESPONSE = ObjectShape(
    nullable=frozenset(_ALWAYS),
    always=dict.fromkeys(_ALWAYS, NULL),
    overrides=frozenset({"model", "service_tier"}),
    inner={
        "output": ITEM,
        "reasoning": ObjectShape(),
        "text": ObjectShape(inner={"format": ObjectShape()}),
        "tools": ObjectShape(frozenset({"parameters", "strict"}), usual=msgspec.json.Decoder(list[Tool])),
    },
)
EVENT = ObjectShape(
    nullable=frozenset({"annotation", "code", "param"}),
    inner={"item": ITEM, "part": ObjectShape(), "response": RESPONSE},
)


_COMPLETED_LINE = b"event: response.completed\n"
_COMPLETED = re.compile(_COMPLETED_LINE + rb"data: (.*)")


class _Status(msgspec.Struct):
    status: str = ""


class _Ended(msgspec.Struct):
    response: _Status


def fit_response(data: bytes, overrides: Overrides, _: Fault) -> bytes:
    """What breaks in a stream of these is raised."""
    fit_response = fit_events(data, RESPONSE, _of_event, overrides)
    return _COMPLETED.sub(_ended, fit_response) if _COMPLETED_LINE in fit_response else fit_response


def _ended(match: re.Match[bytes]) -> bytes:
    """The last event. Of an answer that was cut OpenAI's has another name, and vLLM's has not."""
    if msgspec.json.decode(match[1], type=_Ended).response.status != "incomplete":
        return match[0]
    event = msgspec.json.decode(match[1], type=dict[str, msgspec.Raw])
    event["type"] = msgspec.Raw(b'"response.incomplete"')
    return b"event: response.incomplete\ndata: " + msgspec.json.encode(event)


def _of_event(name: bytes) -> ObjectShape | None:
    """A piece of text, which is most events, is a string and never null."""
    return None if name.endswith(b".delta") else EVENT


_CHAT = re.compile(rb'("object":"chat\.completion(?:\.chunk)?",)')
ANTHROPICS = {"priority": b"priority", "default": b"standard", "flex": b"batch"}


def add_tier(data: bytes, tier: str) -> bytes:
    """tier: as OpenAI calls it. A string in an answer has its quotes escaped, so that this piece is found in none."""
    return _CHAT.sub(rb'\1"service_tier":"' + tier.encode() + b'",', data)


def tier_override(path: str, tier: str) -> Mapping[str, Raw]:
    """The field that tells it in Messages and Responses; empty: it is not to be told."""
    word = ANTHROPICS.get(tier, b"") if path == "/v1/messages" else tier.encode()
    return {"service_tier": Raw(b'"' + word + b'"')} if word else {}


_FIELDS = {"/v1/messages": fit_message, "/v1/responses": fit_response}
"""Their answers hold objects of clients and models, so what is told is put where it belongs, field by field."""
_PAIRS = {"/v1/chat/completions": fit_completion, "/v1/completions": fit_completion}
_SAME = Renamer("", "")


def fit_answer(path: str, data: bytes, tier: str = "", rename: Renamer = _SAME, fault: Fault = lambda: None) -> bytes:
    """`data`, a whole answer or whole events of a stream, as this path's vendor has it. tier: told in it. fault: told
    where a stream broke."""
    if (by_fields := _FIELDS.get(path)) is not None:
        return by_fields(data, {**rename.overrides, **tier_override(path, tier)}, fault)
    if (by_pairs := _PAIRS.get(path)) is not None:
        data = by_pairs(data, fault)
    return rename(add_tier(data, tier) if tier and path == "/v1/chat/completions" else data)
