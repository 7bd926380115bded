"""Fit answers of Messages."""

import re

import msgspec
from msgspec import Raw

from models.chat.answers.shapes import NULL, OVERRIDDEN, Fault, ObjectShape, Overrides, fit_events

_STOP = ("container", "stop_details", "stop_reason", "stop_sequence")
_TOKENS = ("cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens_details", "server_tool_use")
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
