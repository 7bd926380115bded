"""A vendor's dialect of a task: `parse` takes bytes, `render` returns bytes.

Neither uses HTTP objects, so batch lines are answered like requests.

    body -> Endpoint.parse -> ParsedRequest.calls -> the engine's events -> ParsedRequest.render -> head and bytes
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from models.messages import Event
from models.tasks import Call
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Target
from runtime.http import bodies
from runtime.http.errors import Dialect

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
NDJSON = "application/x-ndjson"
WARNING = "X-Roundhouse-Warning"
NO_BUFFERING = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class Head:
    """The status line and headers of an answer."""

    status: int
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    is_relayed: bool = False
    """Whether another server's answer is forwarded, to which nothing may be added."""
    code: str | None = None
    """The error's code, if the engine itself refused the request."""

    @property
    def is_stream(self) -> bool:
        return self.content_type.startswith((EVENT_STREAM, NDJSON))


Part = Head | bytes
Parts = AsyncGenerator[Part, None]
"""One head, then the body's bytes as they arrive."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    model_ref: ModelRef
    calls: Callable[[int | None], Sequence[Call]]
    """Returns the engine calls, given the target's context length if known."""
    render: Callable[[Target, AsyncIterator[Event]], Parts]
    """Builds the answer from the events of all calls in order. The engine is free once they have been read."""
    dialect: Dialect
    """The dialect of its errors."""
    stream: bool = False
    """Whether the answer is a stream of server-sent events."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Fields of the engine's request that have another name here."""
    left_out: Sequence[str] = ()
    """Fields without effect, which cause a warning or, for a strict client or recipe, an error."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An inference path."""

    path: str
    parse: Callable[[bytes, Mapping[str, str]], ParsedRequest]
    """Parses body and query parameters. Raises BadRequest with the field's name."""
    dialect: Dialect
    """The dialect of errors until the body is parsed."""
    parse_object: Callable[[dict[str, Any]], ParsedRequest] | None = None
    """The same for a decoded body, so that it is decoded only once. Such a path has no query parameters."""
    dialect_of: Callable[[bytes], Dialect] | None = None
    """Chooses the dialect of errors for an invalid body, if two dialects share the path."""

    @classmethod
    def of_objects(cls, path: str, parse: Callable[[dict[str, Any]], ParsedRequest], dialect: Dialect) -> Self:
        """A path whose parser takes the decoded body."""
        return cls(path, lambda body, _query: parse(bodies.parse_object(body)), dialect, parse)

    def error_dialect(self, body: bytes) -> Dialect:
        return self.dialect if self.dialect_of is None else self.dialect_of(body)


_LAST_EVENT = re.compile(
    rb"^(?:data: ?\[DONE\]"
    rb"|event: ?(?:message_stop|message-end|response\.(?:completed|incomplete|failed))"
    rb'|data: ?\{"type":"transcript\.text\.done"'
    rb'|data:.*"generated_text":"'
    rb'|\{(?!.*"done":false).*"done":true)',
    re.MULTILINE,
)
"""Last events of OpenAI, Anthropic, Cohere, Responses, transcripts, Text Generation Inference and Ollama.

None can occur inside a text, where quotes and line breaks are escaped."""
_LAST_EVENT_WORDS = (
    b"[DONE]",
    b"message_stop",
    b"message-end",
    b"response.",
    b"text.done",
    b'"generated_text":"',
    b'"done":true',
)
"""A part that contains `_LAST_EVENT` contains one of these, which are faster to search for."""


def last_event_start(data: bytes) -> int:
    """The start of the last event in a part of a stream, or the part's length.

    Clients close the connection after that event.
    """
    for word in _LAST_EVENT_WORDS:
        if word in data:
            match = _LAST_EVENT.search(data)
            return len(data) if match is None else match.start()
    return len(data)  # the usual case


async def whole_answer(data: bytes, content_type: str = JSON, headers: Mapping[str, str] | None = None) -> Parts:
    """Yield an answer that is complete."""
    yield Head(200, content_type, {"content-length": str(len(data)), **(headers or {})})
    yield data


def warning(*texts: str) -> dict[str, str]:
    """The header about ignored or changed fields. Empty texts are skipped."""
    text = "; ".join(filter(None, texts))
    return {WARNING: text} if text else {}
