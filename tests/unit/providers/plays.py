"""Every failure of a provider as a play of the fake, with its status and code."""

from collections.abc import Iterator
from typing import Any

from tests.eventually import PATIENCE
from tests.fakes import traces
from tests.fakes.provider import CUT, GATE, HANG, Play

LONG = dict.fromkeys(("connect", "first_byte", "between_bytes", "whole"), PATIENCE)
SHORT = {**LONG, "first_byte": 0.3, "between_bytes": 0.3}


def bounds(code: str, **more: float) -> dict[str, float]:
    """Return the time-outs for a failure with this code, which are short only if the test is about them."""
    return (SHORT if code == "provider_timeout" else LONG) | more


def timeouts(play: Play) -> dict[str, float]:
    """Return the time-outs for a provider with this play, which are short only if it hangs."""
    parts = play.parts if isinstance(play.parts, list) else []
    if HANG not in parts:
        return LONG
    return SHORT if parts.index(HANG) < 2 else SHORT | {"first_byte": PATIENCE}  # the stream has begun


EVENTS = traces.chat_events("big")
WORDS = EVENTS[:2]
"""The beginning of a stream, with one word."""
MEGABYTE = b" " * 2**20


def stream(*parts: Any) -> Play:
    return Play(list(parts), content_type=traces.EVENTS)


def endless() -> Iterator[bytes]:
    yield from WORDS
    while True:
        yield EVENTS[1] * 1000


def huge() -> Iterator[bytes]:
    yield b'{"id": "'
    for _ in range(2048):
        yield MEGABYTE


def error_event(kind: str) -> bytes:
    return f'data: {{"error": {{"message": "no luck", "type": "{kind}"}}}}\n\n'.encode()


BEFORE: dict[str, tuple[Play, int, str]] = {
    "429": (traces.error(429, "rate_limit_error", **{"retry-after": "7"}), 429, "provider_busy"),
    "429 for money": (traces.error(429, "insufficient_quota", "insufficient_quota"), 502, "provider_no_credit"),
    "402": (traces.error(402, "billing_error"), 502, "provider_no_credit"),
    "401": (traces.error(401, "invalid_request_error", "invalid_api_key"), 502, "provider_key"),
    "404": (traces.error(404), 502, "provider_model"),
    "500": (traces.error(500), 502, "provider_failed"),
    "503": (traces.error(503), 503, "provider_overloaded"),
    "529": (traces.error(529, "overloaded_error"), 503, "provider_overloaded"),
    "hangs before the first byte": (Play([HANG]), 504, "provider_timeout"),
    "breaks before the first byte": (Play([b"", CUT]), 502, "provider_failed"),
    "garbage": (Play([b"\xff\xfe<html>"]), 502, "provider_answer"),
    "half a body": (Play([b'{"id": "x", ']), 502, "provider_answer"),
    "error in a 200": (Play([b'{"error": {"message": "no", "type": "overloaded_error"}}']), 503, "provider_overloaded"),
    "nothing": (Play([b"{}"]), 502, "provider_answer"),
    "no choices": (Play([b'{"id": "x", "choices": null, "base_resp": {"status_code": 1004}}']), 502, "provider_answer"),
    "an error in a message": (
        Play([b'{"code": 500, "msg": "404 NOT_FOUND", "success": false}']), 502, "provider_failed",
    ),
    "an error in an object": (
        Play([b'{"object": "error", "message": "no", "type": "overloaded_error"}']), 503, "provider_overloaded",
    ),
    "a redirect": (
        Play(status=302, headers={"location": "http://169.254.169.254/latest"}), 502, "provider_answer",
    ),
    "an unrequested stream": (stream(*EVENTS), 502, "provider_answer"),
    "a 2 GB body": (Play(huge), 502, "provider_answer"),
    "a 2 GB body with its length": (
        Play([b"{"], headers={"content-length": str(2**31)}), 502, "provider_answer",
    ),
}  # fmt: skip


FIRST: dict[str, tuple[Play, int, str]] = {
    "an error before words": (stream(EVENTS[0], error_event("overloaded_error")), 503, "provider_overloaded"),
    "a limit before words": (stream(error_event("rate_limit_error")), 429, "provider_busy"),
    "hangs before words": (stream(EVENTS[0], HANG), 504, "provider_timeout"),
    "an error outside data": (stream(b'error: {"code": 503, "message": "Loading"}\n\n'), 503, "provider_overloaded"),
    "ends before words": (stream(EVENTS[0]), 502, "provider_answer"),
    "ends at once": (stream(b"data: [DONE]\n\n"), 502, "provider_answer"),
    "no stream": (traces.chat("big"), 502, "provider_answer"),
    "an event that does not end": (stream(b"data: ", *([MEGABYTE] * 6), HANG), 502, "provider_answer"),
}


AFTER: dict[str, tuple[Play, str]] = {
    "hangs in mid-stream": (stream(*WORDS, HANG), "provider_timeout"),
    "half an event": (stream(*WORDS, GATE, EVENTS[2][:20]), "provider_answer"),
    "no end": (stream(*WORDS), "provider_answer"),
    "garbage in mid-stream": (stream(*WORDS, GATE, b"data: {nonsense\n\n"), "provider_answer"),
    "an error in mid-stream": (stream(*WORDS, GATE, error_event("server_error")), "provider_failed"),
    "an error of llama.cpp": (
        stream(*WORDS, GATE, b'error: {"code": 500, "message": "no", "type": "server_error"}\n\n', EVENTS[-1]),
        "provider_failed",
    ),
    "an error event with only a message": (
        stream(*WORDS, GATE, b'event: error\ndata: {"message": "no luck", "code": 502}\n\n', EVENTS[-1]),
        "provider_failed",
    ),
    "an error with a type": (
        stream(*WORDS, GATE, b'data: {"error": {"message": "no luck"}, "type": "server_error"}\n\n', EVENTS[-1]),
        "provider_failed",
    ),
    "a connection that breaks": (stream(*WORDS, GATE, CUT), "provider_failed"),
    "endless": (Play(endless, content_type=traces.EVENTS), "provider_answer"),
}
