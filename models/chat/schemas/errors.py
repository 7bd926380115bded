"""Errors inside a stream: vLLM's `code` is a status again and its `type` a class, where OpenAI's clients have words."""

import re
from collections.abc import Callable

import msgspec

from registry.base.json import NOT_JSON
from registry.errors import BadRequest, RoundhouseError, by_status, short

Fault = Callable[[], BadRequest | None]
"""What a failure of the engine means; None: the engine's own fault. Asked when there is one."""

_BEGIN = b'data: {"error":'
_ERRORS = re.compile(rb'^data: (\{"error":.*\})\r?$', re.MULTILINE)


class _ErrorBody(msgspec.Struct):
    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _Event(msgspec.Struct):
    error: _ErrorBody


def fitted(data: bytes, fault: Fault) -> bytes:
    """The same with a word as `code` of each error, and with a message that is no longer than ours."""
    return _ERRORS.sub(lambda match: _event(match, fault), data) if _BEGIN in data else data


def _event(match: re.Match[bytes], fault: Fault) -> bytes:
    try:
        error = msgspec.json.decode(match[1], type=_Event).error
    except NOT_JSON:
        return match[0]
    if error.code == RoundhouseError.status and (cause := fault()) is not None:
        error = _ErrorBody(cause.message, cause.type, cause.param, cause.code)
    elif isinstance(error.code, int):
        kind = by_status(error.code)
        error.type, error.code = kind.type, kind.code
    error.message = short(error.message)
    return b"data: " + msgspec.json.encode(_Event(error))
