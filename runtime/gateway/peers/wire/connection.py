"""One kept-alive connection to another server, which carries one request at a time.

| state     | begins with             | more data             | it breaks, or `close`               |
|-----------|-------------------------|-----------------------|-------------------------------------|
| idle      | opening, `finish`       | closed                | leaves its pool                     |
| waiting   | `send`                  | a head ends the wait  | `send` raises OSError               |
| answering | the answer's head       | `read` returns it     | `read` raises OSError, after the    |
|           |                         |                       | bytes received so far               |
| complete  | the answer's last byte  | closed                | `read` returns the received bytes   |
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from math import inf
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

BUFFER = 64 * 1024
"""Bytes of an answer that are buffered for the client before reading from the node pauses."""
PIECE = 256 * 1024
"""Bytes of a request written to the transport at a time, because it encrypts everything it gets at once."""
MOST_HEAD = 64 * 1024
"""Most bytes that may come in a row without any of an answer's body: heads, also of interim answers, and trailers."""
INTERIM = range(100, 200)
"""Statuses of interim answers, which are skipped."""


class WireState(Enum):
    IDLE = auto()
    WAITING = auto()
    ANSWERING = auto()
    COMPLETE = auto()


class WireConnection(asyncio.Protocol):
    """A connection to a node. left: called once when it breaks or is closed."""

    __slots__ = (
        "_head", "_head_size", "_is_paused", "_is_reusable", "_left", "_loop", "_parser", "_pieces", "_size", "_state",
        "_transport", "_waiter", "_writable", "failure", "headers", "idle_since", "received_at", "status",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, left: "Callable[[WireConnection], None]") -> None:
        self._loop, self._left = loop, left
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._state, self._is_reusable = WireState.IDLE, False
        self._waiter: asyncio.Future[None] | None = None
        """The task that waits for the head, for bytes, or for room to write."""
        self._writable, self._is_paused = True, False
        self._pieces: list[bytes] = []
        self._size = 0
        """Unread bytes of the answer."""
        self._head: list[tuple[bytes, bytes]] = []
        self._head_size = 0
        """Bytes since the request, or since the last of the body."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """Headers of the answer, with lower-case names."""
        self.failure: Exception | None = None
        """The reason why it is closed. None while it is open."""
        self.idle_since = 0.0
        self.received_at = -inf
        """The event loop's time at which the node last sent something. Its kernel accepts connections even if the
        process hangs."""

    # --- a request --------------------------------------------------------------------------------------------------
    async def send(self, head: bytes, body: bytes) -> None:
        """Send a request, and return once the head of its answer has arrived. Raises OSError."""
        self._raise_failure()
        transport, self._state = self._transport, WireState.WAITING
        assert transport is not None, "it is open"
        self._is_reusable, self._head_size = True, 0
        if len(body) <= PIECE:
            transport.write(head + body)  # one TLS record and, if it fits, one packet
        else:
            await self._send_pieces(transport, head, body)
        while self._is_waiting:
            await self._wait()
        if self._state is WireState.WAITING:
            self._raise_failure()

    async def _send_pieces(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        """Send a large body, until the node answers: it may refuse the body before it has read all of it."""
        transport.write(head)
        view = memoryview(body)
        for start in range(0, len(body), PIECE):
            while not self._writable and self._is_waiting:
                await self._wait()
            if not self._is_waiting:
                self._is_reusable = False
                return
            transport.write(view[start : start + PIECE])

    async def read(self) -> bytes:
        """Return the next bytes of the answer, or b'' at its end. Raises OSError."""
        while not self._pieces:
            if self._state is WireState.COMPLETE:
                return b""
            self._raise_failure()
            await self._wait()
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._size = 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def finish(self) -> bool:
        """End a request, and return whether the connection can be used again. Otherwise it is closed.

        Also closes it if the answer was not read completely, which cancels the request there.
        """
        if self._state is not WireState.COMPLETE or self._pieces or not self._is_reusable or self.failure is not None:
            self.close()
            return False
        self._state, self.headers = WireState.IDLE, []
        return True

    def close(self) -> None:
        """Close immediately, in any state. A pending `read` raises OSError."""
        self._fail(ConnectionAbortedError("Connection closed"))
        if self._transport is not None:
            self._transport.abort()

    @property
    def _is_waiting(self) -> bool:
        """Whether the head of an answer may still arrive."""
        return self._state is WireState.WAITING and self.failure is None

    async def _wait(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _fail(self, failure: Exception) -> None:
        if self.failure is None:
            self.failure = failure
            self._wake()
            self._left(self)

    # --- asyncio ----------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has the methods but not the type

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self.failure is not None:
            return
        self.received_at = self._loop.time()
        before = self._size
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"this is no answer of HTTP/1.1: {error}"))
            self.close()
            return
        self._head_size = self._head_size + len(data) if self._size == before else 0
        if self._head_size > MOST_HEAD:
            self._fail(ConnectionError("The head of the answer is too long"))
            self.close()
            return
        if self._size > BUFFER and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._parser = None  # without this reference cycle both are freed at once
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError("Server disconnected"))

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._wake()

    # --- httptools --------------------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        if self._state is not WireState.WAITING:
            raise ValueError("an answer without a request")  # stops the parser, and `data_received` closes
        self._head = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None, "it calls this"
        self.status = self._parser.get_status_code()
        if self.status not in INTERIM:
            self.headers, self._head, self._state = self._head, [], WireState.ANSWERING

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)

    def on_message_complete(self) -> None:
        if self._state is WireState.ANSWERING:
            assert self._parser is not None, "it calls this"
            self._state = WireState.COMPLETE
            self._is_reusable = self._is_reusable and self._parser.should_keep_alive()
