"""Errors inside a stream: vLLM's `code` is a status again and its `type` a class, where OpenAI's clients have words."""

import re
from collections.abc import Callable

import msgspec

from registry.errors import BadRequest, RoundhouseError, by_status, short
from registry.json import NOT_JSON

Fault = Callable[[], BadRequest | None]
"""What a failure of the engine means; None: the engine's own fault. Asked when there is one."""

_BEGIN = b'data: {"error":'
_ERRORS = re.compile(rb'^data: (\{"error":.*\})\r?$', re.MULTILINE)


class _Told(msgspec.Struct):
    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _Event(msgspec.Struct):
    error: _Told


def fitted(data: bytes, fault: Fault) -> bytes:
    """The same with a word as `code` of each error, and with a message that is no longer than ours."""
    return _ERRORS.sub(lambda found: _event(found, fault), data) if _BEGIN in data else data


def _event(found: re.Match[bytes], fault: Fault) -> bytes:
    try:
        told = msgspec.json.decode(found[1], type=_Event).error
    except NOT_JSON:
        return found[0]
    if told.code == RoundhouseError.status and (cause := fault()) is not None:
        told = _Told(cause.message, cause.type, cause.param, cause.code)
    elif isinstance(told.code, int):
        kind = by_status(told.code)
        told.type, told.code = kind.type, kind.code
    told.message = short(told.message)
    return b"data: " + msgspec.json.encode(_Event(told))
