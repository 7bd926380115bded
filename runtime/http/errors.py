"""Errors as HTTP: one table from the error tree to each dialect's body."""

import math
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict
from enum import StrEnum
from typing import Any

import msgspec
from starlette.responses import Response

from models.sse import event as sse_event
from registry.base.json import NOT_JSON
from registry.base.wording import cut, rfc3339
from registry.errors import LimitExceeded, RoundhouseError, Unfit, Unreachable, by_status

LONGEST = 3 * 1024
"""Bytes of a message, and of a refused adapter's faults: a whole error stays under 4 KiB, its faults under 8."""
LONGEST_PARAM = 256


REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that this task answers, which Anthropic's errors contain, also in streams."""


class Dialect(StrEnum):
    """The vendor whose error format the clients of a path read."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    COHERE = "cohere"
    TEI = "tei"
    TGI = "tgi"
    JINA = "jina"
    OLLAMA = "ollama"


_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Other statuses are "invalid_request_error" below 500, and "api_error" above."""


_TEI = {429: "Overloaded", 503: "Unhealthy"}
"""Other statuses are "Validation" below 500, and "Backend" above."""
_TGI = {429: "overloaded", 503: "overloaded"}
"""Other statuses are "validation" below 500, and "generation" above. Clients raise an error of this name."""
_UNREADABLE = ("invalid_json", "json_too_deep")
_OF_COHERES_SDKS = (Dialect.COHERE, Dialect.JINA)
"""Dialects of the paths that Cohere's SDKs use: version 1's rerank is Jina's."""


def status(error: RoundhouseError, dialect: Dialect = Dialect.OPENAI) -> int:
    """The HTTP status. TGI uses 422 for every invalid request except broken JSON."""
    if dialect is Dialect.TGI and error.status == 400 and error.code not in _UNREADABLE:
        return 422
    return error.status


def body(error: RoundhouseError, dialect: Dialect = Dialect.OPENAI) -> dict[str, Any]:
    """An error's JSON body. Texts are cut, since they may contain the client's own text."""
    message = cut(error.message, LONGEST)
    match dialect:
        case Dialect.ANTHROPIC:
            kind = _ANTHROPIC.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
            return {"type": "error", "error": {"type": kind, "message": message}, "request_id": REQUEST_ID.get()}
        case Dialect.COHERE:
            return {"message": message}
        case Dialect.TEI:
            kind = _TEI.get(error.status, "Validation" if error.status < 500 else "Backend")
            return {"error": message, "error_type": kind}
        case Dialect.TGI:
            kind = _TGI.get(error.status, "validation" if error.status < 500 else "generation")
            return {"error": message, "error_type": kind}
        case Dialect.OLLAMA:
            return {"error": message}
        case Dialect.JINA:  # clients of vLLM and OpenAI use these paths too, and read `error`
            return {"detail": message, **body(error)}
        case _:
            inner: dict[str, Any] = {
                "message": message,
                "type": error.type,
                "param": error.param if error.param is None else cut(error.param, LONGEST_PARAM),
                "code": error.code,
            }
            if isinstance(error, Unfit) and error.faults:
                inner["faults"] = _bounded_faults(error.faults)
            if isinstance(error, LimitExceeded):
                inner["limits"] = [asdict(one) for one in error.binding]
            if isinstance(error, Unreachable):
                inner["predicted_wait_seconds"] = round(error.predicted_wait_seconds, 3)
            return {"error": inner}


def _bounded_faults(faults: Sequence[str]) -> list[str]:
    """The first faults, up to LONGEST bytes, and the number of others."""
    listed: list[str] = []
    bytes_left = LONGEST
    for fault in faults:
        text = cut(fault, LONGEST)
        bytes_left -= len(text.encode())
        if bytes_left < 0:
            return [*listed, f"… and {len(faults) - len(listed)} more"]
        listed.append(text)
    return listed


def headers(error: RoundhouseError, dialect: Dialect = Dialect.OPENAI) -> dict[str, str]:
    """Retry-After in whole seconds if known, and WWW-Authenticate if needed.

    Cohere's SDKs do not know x-should-retry, and sleep for up to a minute of a Retry-After, twice. So they are not told
    of a wait that no retry can bridge, such as a budget's until the end of the month.
    """
    if error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if error.retry_after is None or (dialect in _OF_COHERES_SDKS and not error.should_retry):
        return _retry_headers(error)
    headers = {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, LimitExceeded):
        headers["retry-after-ms"] = str(math.ceil(error.retry_after * 1e3))
    return headers | _retry_headers(error)


def _retry_headers(error: RoundhouseError) -> dict[str, str]:
    """x-should-retry: without it, OpenAI's and Anthropic's SDKs retry every 409, 429 and 5xx."""
    return {} if error.should_retry else {"x-should-retry": "false"}


def encode(error: RoundhouseError, dialect: Dialect = Dialect.OPENAI) -> bytes:
    return msgspec.json.encode(body(error, dialect))


def error_response(error: RoundhouseError, dialect: Dialect = Dialect.OPENAI) -> Response:
    return Response(
        encode(error, dialect), status(error, dialect), headers(error, dialect), media_type="application/json"
    )


class _ForeignFields(msgspec.Struct):
    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None
    """An integer is vLLM's and repeats the status; `type` is then the name of a class in vLLM."""


class _ForeignError(msgspec.Struct):
    error: _ForeignFields


def translate_engine_error(status: int, body: bytes, dialect: Dialect) -> tuple[str, bytes]:
    """Return the code of an engine's error body, and the body in `dialect`, cut to the length of ours.

    A short body in another format stays as it is.
    """
    ours = by_status(status)
    try:
        fields = msgspec.json.decode(body, type=_ForeignError).error
    except NOT_JSON:
        fields = _ForeignFields("The engine refused this request.")
        if len(body) <= LONGEST:
            return ours.code, body
    code = cut(fields.code, LONGEST_PARAM) if isinstance(fields.code, str) else ours.code
    if dialect is Dialect.OPENAI:
        fields.message = cut(fields.message, LONGEST)
        fields.param = None if fields.param is None else cut(fields.param, LONGEST_PARAM)
        if isinstance(fields.code, int):
            fields.type, fields.code = None, ours.code
        fields.type = fields.type or ours.type
        return code, msgspec.json.encode(_ForeignError(fields))
    error = RoundhouseError(fields.message)
    error.status = status
    return code, encode(error, dialect)


def sse(error: RoundhouseError, dialect: Dialect = Dialect.OPENAI) -> bytes:
    """The error as the last event or line of a stream."""
    if dialect is Dialect.OLLAMA:
        return encode(error, dialect) + b"\n"
    return event(encode(error, dialect), dialect)


def event(data: bytes, dialect: Dialect) -> bytes:
    """An error's body as an event. Anthropic's clients ignore unnamed events; Cohere's need a final event."""
    if dialect is Dialect.COHERE:
        delta = {"finish_reason": "ERROR", "error": msgspec.json.decode(data)["message"]}
        return sse_event({"type": "message-end", "delta": delta}, "message-end")
    name = b"event: error\n" if dialect is Dialect.ANTHROPIC else b""
    return name + b"data: " + data + b"\n\n"


# --- headers about limits --------------------------------------------------------------------------------------------
Levels = Mapping[str, tuple[int, int, float]]
"""Limit, remaining amount and seconds until it is full again, by kind of limit."""
_NAMES = {
    "requests_per_minute": "requests", "tokens_per_minute": "tokens", "audio_seconds_per_minute": "audio-seconds",
    "requests_at_once": "concurrent-requests",
}  # fmt: skip
_LAST = 253_402_300_799
"""The last second of the year 9999, the latest time in RFC 3339."""
_ANTHROPICS = frozenset(("requests", "tokens"))
_UNITS = {"audio_seconds_per_minute": 1000}


def limit_headers(levels: Levels, dialect: Dialect) -> dict[str, str]:
    """What remains of a caller's limits, as headers of the dialect.

    OpenAI writes times like Go (`6m0s`), Anthropic as RFC 3339. Of several limits of a kind, the one with the least
    remaining counts.
    """
    headers: dict[str, str] = {}
    for kind, (limit, remaining, seconds) in levels.items():
        name = _NAMES.get(kind)
        if name is None:
            continue
        unit = _UNITS.get(kind, 1)
        if dialect is Dialect.ANTHROPIC and name in _ANTHROPICS:
            start = f"anthropic-ratelimit-{name}-"
            headers |= {f"{start}limit": f"{limit // unit}", f"{start}remaining": f"{remaining // unit}"}
            headers[f"{start}reset"] = format_time(time.time() + seconds)
        else:
            headers |= {
                f"x-ratelimit-limit-{name}": f"{limit // unit}",
                f"x-ratelimit-remaining-{name}": f"{remaining // unit}",
                f"x-ratelimit-reset-{name}": format_duration(seconds),
            }
    return headers


def format_duration(seconds: float) -> str:
    """Format a duration like Go, rounded up to a millisecond: 0s, 12ms, 1.5s, 6m0s."""
    ms = math.ceil(seconds * 1e3)
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1e3:g}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


def format_time(at: float) -> str:
    """Format a time as RFC 3339, rounded up to a second."""
    return rfc3339(min(math.ceil(at), _LAST))
