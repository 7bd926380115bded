"""Adds `model_used` to answers for which a router chose the model.

It becomes the first field of the object, or of a stream's first event, without parsing. Errors, and answers that are
no objects (a list of vectors, a transcript as text), stay unchanged; the header X-Roundhouse-Route names it as well.
"""

import json
from contextlib import aclosing
from dataclasses import replace

from runtime.gateway.request import Request
from runtime.http.dialect import EVENT_STREAM, JSON, NDJSON, Head, Parts

SEARCHED_BYTES = 4096
"""Bytes at the beginning of a stream that are searched for its first event."""


async def with_model_used(request: Request, parts: Parts) -> Parts:
    """Add the answering model to an answer. Answers of other servers have it already."""
    field, waiting, is_events = b"", b"", False
    async with aclosing(parts):
        async for part in parts:
            if isinstance(part, Head):
                field, is_events = _field(request, part), part.content_type.startswith(EVENT_STREAM)
                if not field or part.is_stream or "content-length" not in part.headers:
                    yield part
                    continue
                first = await anext(parts, b"")
                assert isinstance(first, bytes)
                rewritten = _put(first, field, is_events)
                length = int(part.headers["content-length"]) + len(rewritten) - len(first)
                yield replace(part, headers={**part.headers, "content-length": str(length)})
                yield rewritten
                field = b""
            elif field:
                waiting += part
                rewritten = _put(waiting, field, is_events)
                if rewritten != waiting or len(waiting) > SEARCHED_BYTES:
                    yield rewritten
                    field = waiting = b""
            else:
                yield part
        if waiting:
            yield waiting


def _field(request: Request, head: Head) -> bytes:
    """The field, with a comma behind it. Empty for an answer that gets none."""
    has_objects = head.content_type.startswith((JSON, EVENT_STREAM, NDJSON))
    if request.target is None or head.status >= 400 or head.is_relayed or not has_objects:
        return b""
    return b'"model_used":' + json.dumps(request.target.model_name).encode() + b","


def _put(data: bytes, field: bytes, is_events: bool) -> bytes:
    """Insert the field into the first object of a body or event. Unchanged if there is none."""
    first = (data.partition(b"data:")[2] if is_events else data).lstrip()
    if not first.startswith(b"{"):
        return data
    at = len(data) - len(first) + 1
    if data[at:].lstrip().startswith(b"}"):
        field = field[:-1]
    return data[:at] + field + data[at:]
