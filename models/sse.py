"""Server-sent events: split bytes into events, read their data, and write events."""

import re
import sys
from collections.abc import Iterator

import msgspec

_END = re.compile(rb"\n\n|\r\n\r\n|\r\r|\n\r\n|\r\n\n")
_BOM = b"\xef\xbb\xbf"
DONE = b"[DONE]"


class TooLong(Exception):
    """An event is longer than its bound."""


class Splitter:
    """Splits bytes into events. most: bytes of one event."""

    def __init__(self, most: int) -> None:
        self._most, self._buffer, self._begun = most, bytearray(), False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield each complete event, including its end. Raises TooLong."""
        seen = max(0, len(self._buffer) - 3)
        self._buffer += data
        if not self._begun and len(self._buffer) >= len(_BOM):
            self._begun = True
            if self._buffer.startswith(_BOM):
                del self._buffer[: len(_BOM)]
        start = 0
        for end in _END.finditer(self._buffer, seen):
            yield bytes(self._buffer[start : end.end()])
            start = end.end()
        if start:
            del self._buffer[:start]
        if len(self._buffer) > self._most:
            raise TooLong


class Reader:
    """Reads the data of each event, from bytes split in any way, without comments."""

    def __init__(self) -> None:
        self._splitter = Splitter(sys.maxsize)

    def feed(self, received: bytes) -> list[bytes]:
        """Return the data of events that these bytes complete."""
        return [data for event in self._splitter.feed(received) if (data := data_of(event))]


def data_of(event: bytes, field: bytes = b"data:") -> bytes:
    """Return the content of an event's `data` lines; empty for a comment."""
    lines = [line[len(field) :].strip() for line in event.splitlines() if line.startswith(field)]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def with_data(event: bytes, data: bytes) -> bytes:
    """Return the event with other data."""
    other_lines = [line for line in event.splitlines() if line and not line.startswith(b"data:")]
    return b"\n".join([*other_lines, *(b"data: " + line for line in data.splitlines()), b"", b""])


def event(data: object, name: str | None = None) -> bytes:
    """Return an event with this data as JSON."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


DONE_EVENT = b"data: [DONE]\n\n"
