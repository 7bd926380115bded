"""Messages: vLLM leaves out what is null, and Anthropic's clients are told that it is always there."""

import re

import msgspec
from msgspec import Raw

from models.chat.schemas import shape
from models.chat.schemas.errors import Fault
from models.chat.schemas.shape import NULL, ObjectShape, Overrides

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
_EVENT = re.compile(rb'(?<=event: error\ndata: )\{.*"error":\{"type":"internal_error".*')


def fitted(data: bytes, overrides: Overrides, fault: Fault) -> bytes:
    if b"event: error\n" in data:
        if _EVENT.search(data) and (cause := fault()) is not None:
            error = {"type": "error", "error": {"type": cause.type, "message": cause.message}}
            body = msgspec.json.encode(error)
            data = _EVENT.sub(lambda _: body, data)
        data = data.replace(_BROKEN, _API_ERROR)
    return shape.fitted(data, MESSAGE, EVENTS.get, overrides)
