"""A cheap streaming HTTP/1.1 client, so that benchmarks measure the server and not the client.

It uses no HTTP library: an `asyncio.Protocol` takes the time as soon as bytes arrive, decodes chunked transfer, and
counts the ends of server-sent events. JSON is parsed once, after the stream has ended and outside the timed interval.
`benchmarks.load.client_cost` measures its cost per event, and every result includes the client's own CPU seconds.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import msgspec

_HEAD_END = b"\r\n\r\n"


@dataclass(slots=True)
class Reply:
    """An answer. Times are `time.perf_counter()` seconds; `error` is None if the whole answer arrived."""

    sent: float
    status: int = 0
    arrivals: list[float] = field(default_factory=list)
    """Time of each read that completed an event; without a stream, the time of the end."""
    events: int = 0
    head: bytes = b""
    body: bytearray = field(default_factory=bytearray)
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first event."""
        return self.arrivals[0] - self.sent

    @property
    def total(self) -> float:
        return self.arrivals[-1] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between reads that brought tokens, as a reader of the stream experiences them. Tokens that arrive
        together count as one longer gap, not as several of zero."""
        return [b - a for a, b in pairwise(self.arrivals)]

    def usage(self) -> dict[str, int]:
        """Return the answer's `usage` object; empty if there is none."""
        at = self.body.rfind(b'"usage":{')
        if at < 0:
            return {}
        result: dict[str, Any] = json.JSONDecoder().raw_decode(self.body[at + 8 :].decode())[0]
        return {key: value for key, value in result.items() if isinstance(value, int)}

    @property
    def tokens(self) -> int:
        """Completion tokens by the server's count."""
        return self.usage().get("completion_tokens", 0)

    def header(self, name: str) -> str:
        """Return a response header's value, or '' if it is missing."""
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.strip().lower() == name:
                return value.strip()
        return ""


def request_bytes(path: str, body: object, *, kind: str = "application/json") -> bytes:
    """Return a whole HTTP/1.1 POST. `body` is encoded as JSON unless it is bytes of content type `kind`."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(data)}", f"Content-Type: {kind}"]
    return "\r\n".join(lines).encode() + _HEAD_END + data


class Connection(asyncio.Protocol):
    """A keep-alive connection for one request at a time. Open it with `connect`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._done: asyncio.Future[None] | None = None
        self._rest = bytearray()
        self._left = 0
        self._chunked = False
        self._stream = False

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def reply(self) -> Reply | None:
        """The answer that is being received, or None if there is no request."""
        return self._reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods but not the type

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end("connection lost")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def ask(self, request: bytes, timeout: float) -> Reply:
        """Send a request and wait for the whole answer. Failures are recorded in `Reply.error`, never raised."""
        assert self._done is None, "one request at a time"
        if self._transport is None or not self.open:
            return Reply(time.perf_counter(), error="no connection")
        loop = asyncio.get_running_loop()
        self._rest.clear()
        self._done = loop.create_future()
        reply = self._reply = Reply(time.perf_counter())
        timer = loop.call_later(timeout, self._end, "timeout")
        self._transport.write(request)
        await self._done
        timer.cancel()
        self._done = self._reply = None
        if reply.error is None:
            reply.error = _fault(reply, self._stream)
        else:
            self.close()  # the rest of the answer must not be taken for the next one
        return reply

    def _end(self, error: str | None = None) -> None:
        if self._done is not None and not self._done.done():
            assert self._reply is not None
            self._reply.error = error
            self._done.set_result(None)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        reply = self._reply
        if reply is None or self._done is None or self._done.done():
            return
        rest = self._rest
        rest += data
        if not reply.head and not self._take_head(reply):
            return
        seen = max(0, len(reply.body) - 1)
        ended = self._take_chunks(reply.body) if self._chunked else self._take_length(reply.body)
        if self._stream and (events := reply.body.count(b"\n\n", seen)):
            reply.events += events
            reply.arrivals.append(now)
        if ended:
            if not self._stream:
                reply.arrivals.append(now)
            self._end()

    def _take_head(self, reply: Reply) -> bool:
        end = self._rest.find(_HEAD_END)
        if end < 0:
            return False
        reply.head = bytes(self._rest[:end])
        del self._rest[: end + 4]
        reply.status = int(reply.head[9:12])
        self._chunked = reply.header("transfer-encoding").lower() == "chunked"
        self._stream = reply.header("content-type").startswith("text/event-stream")
        self._left = int(reply.header("content-length") or 0)
        return True

    def _take_length(self, body: bytearray) -> bool:
        body += self._rest[: self._left]
        taken = min(self._left, len(self._rest))
        del self._rest[:taken]
        self._left -= taken
        return self._left == 0

    def _take_chunks(self, body: bytearray) -> bool:
        """Move complete chunks into `body`; returns True after the last one."""
        rest, at = self._rest, 0
        while (line := rest.find(b"\r\n", at)) >= 0:
            size = int(rest[at:line].split(b";")[0], 16)
            if len(rest) < line + 4 + size:
                break
            body += rest[line + 2 : line + 2 + size]
            at = line + 4 + size
            if size == 0:
                return True
        del rest[:at]
        return False


def _fault(reply: Reply, stream: bool) -> str | None:
    """Return why a complete answer is not a success, or None if it is one."""
    if reply.status >= 300:
        return f"http {reply.status}"
    if stream and b'"error"' in reply.body:
        return "error in stream"
    if stream and b"data: [DONE]" not in reply.body[-64:]:
        return "stream without its end"
    return None


async def connect(port: int) -> Connection:
    """Open a connection to this machine. Raises OSError if nothing listens."""
    _, protocol = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return protocol
