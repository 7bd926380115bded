"""Decides which answers are findings, without I/O."""

import msgspec

from tests.fuzz.corpus import Raw
from tests.fuzz.sending import Reply

LATER = (429, 503)
"""Temporary refusals, which must say when to retry."""
REPORTED_OTHERWISE = ("/health/ready", "/health/live")
FRAMING = ("content-length", "transfer-encoding", "connection", "expect", "upgrade")
LONGEST_ERROR = 8192
"""Most bytes of an error's body: its text is at most 3 KiB, and JSON may double that."""


def finding(raw: Raw, reply: Reply) -> str | None:
    """Return in one line what is wrong with an answer, or None."""
    status, whole = reply.status, is_whole(raw)
    if status == -3:
        return "no connection"
    if status == -2:
        return "no answer in time"
    if status in (0, -1):
        return ("the connection was closed without an answer", "the answer is not HTTP")[-status] if whole else None
    if status in LATER and raw.path not in REPORTED_OTHERWISE:
        return None if _seconds(reply) >= 1 else f"{status} without Retry-After: {_text(reply)}"
    if status >= 500 and status != 503:
        return f"{status}: {_text(reply)}"
    if status >= 400 and raw.method != "HEAD":
        if len(reply.body) > LONGEST_ERROR:
            return f"{status} with {len(reply.body)} bytes of error"
        is_page = raw.path.startswith("/console") and "text/html" in (raw.header("accept") or "")
        if not is_page and not _is_object(reply):
            return f"{status} that is not a JSON object: {_text(reply)}"
    if reply.headers.get("content-type", "").startswith("text/event-stream") and b'"internal_error"' in reply.body:
        return f"a stream that ended with internal_error: {_text(reply)[-300:]}"
    return None


def is_whole(raw: Raw) -> bool:
    """Return whether it is one valid HTTP request, whatever it asks for. A server need not answer anything else."""
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
