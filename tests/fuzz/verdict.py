"""Which answers are findings. Nothing here asks anybody."""

import msgspec

from tests.fuzz.corpus import Raw
from tests.fuzz.sending import Reply

LATER = (429, 503)
"""Refusals of a moment; they must say when to come back."""
REPORTED_OTHERWISE = ("/health/ready", "/health/live")
FRAMING = ("content-length", "transfer-encoding", "connection", "expect", "upgrade")
LONGEST_ERROR = 8192
"""Bytes of an error's body: its text is at most 3 KiB, which JSON may double."""


def finding(raw: Raw, reply: Reply) -> str | None:
    """What is wrong with an answer, in a line; None: nothing."""
    status, whole = reply.status, is_whole(raw)
    if status == -3:
        return "no connection"
    if status == -2:
        return "no answer in time"
    if status in (0, -1):
        return ("the connection was closed without an answer", "the answer is no HTTP")[-status] if whole else None
    if status in LATER and raw.path not in REPORTED_OTHERWISE:
        return None if _seconds(reply) >= 1 else f"{status} without Retry-After: {_text(reply)}"
    if status >= 500 and status != 503:
        return f"{status}: {_text(reply)}"
    if status >= 400 and raw.method != "HEAD":
        if len(reply.body) > LONGEST_ERROR:
            return f"{status} with {len(reply.body)} bytes of error"
        is_page = raw.path.startswith("/console") and "text/html" in (raw.header("accept") or "")
        if not is_page and not _is_object(reply):
            return f"{status} that is no JSON object: {_text(reply)}"
    if reply.headers.get("content-type", "").startswith("text/event-stream") and b'"internal_error"' in reply.body:
        return f"a stream that ended with internal_error: {_text(reply)[-300:]}"
    return None


def is_whole(raw: Raw) -> bool:
    """Is it one request of HTTP, whatever it asks for? Of what is none, a server may say nothing."""
    lines = [raw.method, raw.target, *(text for header in raw.headers for text in header)]
    plain = all(" " <= letter <= "~" for line in lines for letter in line)
    return plain and raw.method.isalpha() and not any(raw.header(name) for name in FRAMING)


def _seconds(reply: Reply) -> int:
    reported = reply.headers.get("retry-after", "")
    return int(reported) if reported.isdigit() else 0


def _is_object(reply: Reply) -> bool:
    try:
        return isinstance(msgspec.json.decode(reply.body), dict)
    except msgspec.DecodeError:
        return False


def _text(reply: Reply) -> str:
    return reply.body[:300].decode("latin-1")
