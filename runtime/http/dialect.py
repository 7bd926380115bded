"""A vendor's dialect of a task: `parse` takes bytes, `render` gives bytes.

No HTTP object on either side, so that a line of a batch is answered as a request is.

    body -> Endpoint.parse -> ParsedRequest.calls -> the engine's events -> ParsedRequest.render -> head and bytes
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models import sse
from models.messages import Chunk, Event, ResponseStart
from models.tasks import Call
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Target
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
    """Another server's, whose bytes are passed on and nothing beside them."""

    @property
    def is_stream(self) -> bool:
        return self.content_type.startswith((EVENT_STREAM, NDJSON))


Part = Head | bytes
Parts = AsyncGenerator[Part, None]
"""One head, then the body's bytes as they come."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request that was understood."""

    model_ref: ModelRef
    calls: Callable[[int | None], Sequence[Call]]
    """The engine calls for a request, given the tokens that the target takes, if known."""
    render: Callable[[Target, AsyncIterator[Event]], Parts]
    """The answer, of the events of all calls in their order; once they have been read, the engine is free again."""
    dialect: Dialect
    """The dialect of its errors."""
    stream: bool = False
    """Whether the answer is a stream of server-sent events."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Fields of the engine's request whose name is another one here."""
    left_out: Sequence[str] = ()
    """Fields without effect, which a warning names; a strict client or recipe has them refused."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path of inference."""

    path: str
    parse: Callable[[bytes, Mapping[str, str]], ParsedRequest]
    """Body and query parameters. Raises BadRequest with the field's name."""
    dialect: Dialect
    """The dialect of errors, as long as the body is not understood."""
    parse_object: Callable[[dict[str, Any]], ParsedRequest] | None = None
    """The same for a body that is decoded already, so that it is decoded once; such a path has no query parameters."""
    dialect_of: Callable[[bytes], Dialect] | None = None
    """Chooses the dialect of a body that is not understood, where two share a path."""

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
"""OpenAI's, Anthropic's, Cohere's and that of Responses, of transcripts, of Text Generation Inference, Ollama's.

None of them can stand in a text: there quotes and line ends are escaped. A call's arguments may say that they are done;
the line does not."""
_LAST_EVENT_WORDS = (
    b"[DONE]",
    b"message_stop",
    b"message-end",
    b"response.",
    b"text.done",
    b'"generated_text":"',
    b'"done":true',
)
"""Words of which a part has one if `_LAST_EVENT` is in it: ten times as fast to find."""


def last_event_start(data: bytes) -> int:
    """The start of the last event in a part of a stream, else its length.

    Clients close the connection then, and read no further.
    """
    for word in _LAST_EVENT_WORDS:
        if word in data:
            match = _LAST_EVENT.search(data)
            return len(data) if match is None else match.start()
    return len(data)  # nearly every part


async def whole_answer(data: bytes, content_type: str = JSON, headers: Mapping[str, str] | None = None) -> Parts:
    """An answer in one piece."""
    yield Head(200, content_type, {"content-length": str(len(data)), **(headers or {})})
    yield data


def warning(*texts: str) -> dict[str, str]:
    """A header about fields that were left out or changed; empty texts are skipped."""
    text = "; ".join(filter(None, texts))
    return {WARNING: text} if text else {}


async def read_engine_answer(events: AsyncIterator[Event]) -> tuple[ResponseStart, bytes]:
    """The start and the body of an engine's answer in one piece."""
    started, data = ResponseStart(status=200, content_type=JSON), bytearray()
    async for event in events:
        if isinstance(event, ResponseStart):
            started = event
        elif isinstance(event, Chunk):
            data += event.data
    return started, bytes(data)


async def read_engine_events(
    events: AsyncIterator[Event], refuse: Callable[[int, bytes], object]
) -> AsyncGenerator[ResponseStart | bytes, None]:
    """The start, then the data of the engine's events, however they were cut.

    `refuse` raises what an answer with a status of 400 or above tells.
    """
    status, refusal, reader = 200, b"", sse.Reader()
    async for event in events:
        if isinstance(event, ResponseStart):
            status = event.status
            yield event
        elif not isinstance(event, Chunk):
            continue
        elif status >= 400:
            refusal += event.data
        else:
            for data in reader.feed(event.data):
                yield data
    if status >= 400:
        refuse(status, refusal)
