"""Errors inside a stream: vLLM's `code` is a status again, where OpenAI and its clients have a word."""

import re

import msgspec

from registry.errors import by_status, short
from registry.json import NOT_JSON

_BEGIN = b'data: {"error":'
_ERRORS = re.compile(rb'^data: (\{"error":.*\})\r?$', re.MULTILINE)


class _Told(msgspec.Struct):
    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _Event(msgspec.Struct):
    error: _Told


def fitted(data: bytes) -> bytes:
    """The same with a word as `code` of each error, and with a message that is no longer than ours."""
    return _ERRORS.sub(_event, data) if _BEGIN in data else data


def _event(found: re.Match[bytes]) -> bytes:
    try:
        told = msgspec.json.decode(found[1], type=_Event).error
    except NOT_JSON:
        return found[0]
    if isinstance(told.code, int):
        told.code = by_status(told.code).code
    told.message = short(told.message)
    return b"data: " + msgspec.json.encode(_Event(told))
