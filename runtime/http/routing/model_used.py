"""Adds `model_used` to answers for which a router chose the model.

It becomes the first field of the object, or of a stream's first event, without parsing. Errors, and answers that are
no objects (a list of vectors, a transcript as text), stay unchanged; the header X-Roundhouse-Route names it as well.
"""

import json
from contextlib import aclosing

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
                target = request.target
                has_objects = part.content_type.startswith((JSON, EVENT_STREAM, NDJSON))
                if target is not None and part.status < 400 and has_objects and not part.is_relayed:
                    field = b'"model_used":' + json.dumps(target.model_name).encode() + b","
                    is_events = part.content_type.startswith(EVENT_STREAM)
                if field and not part.is_stream and "content-length" in part.headers:
                    length = int(part.headers["content-length"])
                    part = Head(part.status, part.content_type, part.headers)
                    first = await anext(parts, b"")
                    assert isinstance(first, bytes)
                    rewritten = _put(first, field, is_events)
                    yield Head(
                        part.status, part.content_type,
                        {**part.headers, "content-length": str(length + len(rewritten) - len(first))},
                    )  # fmt: skip
                    yield rewritten
                    field = b""
                    continue
                yield part
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


def _put(data: bytes, field: bytes, is_events: bool) -> bytes:
    """Insert the field into the first object of a body or event. Unchanged if there is none."""
    first = (data.partition(b"data:")[2] if is_events else data).lstrip()
    if not first.startswith(b"{"):
        return data
    at = len(data) - len(first) + 1
    if data[at:].lstrip().startswith(b"}"):
        field = field[:-1]
    return data[:at] + field + data[at:]
