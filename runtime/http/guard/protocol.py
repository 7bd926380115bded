"""uvicorn's connection, with bounds on bytes and time until a request is complete.

The parser, httptools, has none: it collects the pieces of a header without end. All private parts of uvicorn 0.54 that
this project uses are here, and tests/unit/guard/test_uvicorn_pin.py guards them.

| the connection                           | until                | after that                              |
|------------------------------------------|----------------------|-----------------------------------------|
| new, or in the headers of a request      | `header_seconds`     | closed, with a 408 if a request began   |
| in the body of a request                 | see `guard.bodies`   | 408                                     |
| in a body whose answer was already sent  | `header_seconds`     | closed                                  |
| idle after an answer                     | uvicorn's keep-alive | closed                                  |
| half closed after a refusal or last      | `LINGER`             | closed; further data is dropped         |
|   answer, while a body still arrives     |                      |                                         |
| its client reads less of the answer than | `unread_seconds`     | aborted; the work is cancelled          |
|   all that is sent, and than `SLOWEST`   |                      |                                         |
| closed, with bytes left unread           | `LINGER`             | aborted                                 |
| half closed by a client that still waits | the answer           | closed; see `_probe`                    |
| half closed during or after a request    |                      | closed                                  |
| closed, with pipelined requests that     | `MAX_PROBE_SECONDS`  | the same                                |
|   stopped the reading                    |                      |                                         |
"""

import asyncio
import logging
import secrets
import select
import sys
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from registry.base.wording import quoted
from registry.errors import BadRequest, HeadersTooLarge, RequestTimedOut, RoundhouseError, UnsupportedCoding
from runtime.http import errors as http_errors

log = logging.getLogger("roundhouse.http")
LINGER = 2.0
"""Seconds for a refused client to read the error. An immediate close could discard it while the client sends."""
SLOWEST = 8 << 20
"""Bytes of a long answer that a client has to read in each `unread_seconds`, about 1 Mbit/s."""
_HEADER_MARKS = len(b": \r\n")
LARGE = 2**14
"""Bodies of at least this many bytes are not copied to be sent together with the head."""
SPARE_FILES = 2
"""File descriptors below the limit at which it is logged that none are left. Other threads may take the last ones."""
LOG_SECONDS = 10.0
"""Least seconds between two such lines of the log."""
PROBE_SECONDS, MAX_PROBE_SECONDS = 0.5, 8.0
"""Seconds of the first and the longest pause between probes of a client that half closed its connection."""


class Closable(Protocol):
    def leave(self) -> None: ...


class IdleConnections:
    """Connections that wait for a request, bounded in total and per address.

    Over a bound, the longest idle one is closed instead of refusing the new one, so that a client that opens many
    connections cannot keep out others behind the same address.
    """

    def __init__(self, most: int, per_address: int) -> None:
        self._most, self._per_address = most, per_address
        self._all: dict[Closable, str] = {}
        self._by_address: dict[str, dict[Closable, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: Closable, address: str) -> None:
        """Add an idle connection, which may close another one."""
        self.remove(connection)
        self._all[connection] = address
        here = self._by_address.setdefault(address, {})
        here[connection] = None
        if len(here) > self._per_address:
            self._close(next(iter(here)))
        elif len(self._all) > self._most:
            self._close(next(iter(self._all)))

    def remove(self, connection: Closable) -> None:
        """Remove a connection. Does nothing if it is not idle."""
        address = self._all.pop(connection, None)
        if address is not None:
            here = self._by_address[address]
            del here[connection]
            if not here:
                del self._by_address[address]

    def _close(self, connection: Closable) -> None:
        self.remove(connection)
        connection.leave()


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Bounds on a server's connections."""

    headers: int
    header_seconds: float
    unread_seconds: float
    pipelined: int
    idle: IdleConnections
    files: int
    """Most file descriptors of this process. libuv closes connections beyond them at once, without a word."""


class GuardedConnection(HttpToolsProtocol):
    """A client's connection."""

    _next_log: ClassVar[float] = 0.0
    """The loop's time from which it may be logged again that no file descriptors are left."""

    def __init__(
        self,
        bounds: ConnectionBounds,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._bounds = bounds
        self._head = 0
        """Bytes of this message's complete headers."""
        self._unread = 0
        """Bytes since the parser last produced headers, a piece of a body or the end of a message."""
        self._data = self._again = b""
        """The bytes being parsed, and those to parse after them."""
        self._begun = self._refused = self._is_in_body = False
        self._refusal: RoundhouseError | None = None
        self._running: RequestResponseCycle | None = None
        """The request being answered; `cycle` is the last one received."""
        self._deadline: asyncio.TimerHandle | None = None
        self._unsent: asyncio.TimerHandle | None = None

    # --- connection -----------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._check_files(transport.get_extra_info("socket").fileno())
        self._wait()
        self._arm(self._bounds.header_seconds)

    def _check_files(self, number: int) -> None:
        """Log that no file descriptors are left, at most once in LOG_SECONDS. number: of a new one, the lowest free."""
        now = self.loop.time()
        if number < self._bounds.files - SPARE_FILES or now < GuardedConnection._next_log:
            return
        GuardedConnection._next_log = now + LOG_SECONDS
        text = "no file descriptors are left, so further connections are closed: raise the limit of open files"
        log.error(text, extra={"limit": self._bounds.files})

    def connection_lost(self, exc: Exception | None) -> None:
        self._bounds.idle.remove(self)
        self._disarm()
        if self._unsent is not None:
            self._unsent.cancel()
        super().connection_lost(exc)
        if self._running is not None and not self._running.response_complete:  # uvicorn tells only the last request
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._unread += len(data)
        while data:
            self._data, self._again = data, b""
            super().data_received(data)
            data = self._again
        self._data = b""
        if self._unread > self._bounds.headers:
            self._refuse(self._too_large())
        elif self._answered() and self._deadline is None:
            self._arm(self._bounds.header_seconds)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Stay open for a client that half closed its connection, since it may still read the answer."""
        if self._refused or self._begun or self._answered() or self.scheme == "https":  # TLS cannot be half closed
            return None
        self.cycle.keep_alive = False
        self._disarm()
        self._deadline = self.loop.call_later(PROBE_SECONDS, self._probe, PROBE_SECONDS)
        return True

    def _probe(self, pause: float) -> None:
        """Find out whether the client is still there, since half and full close look the same.

        Only sending provokes a reset, which fails the next write. Streams send anyway; others get an interim answer,
        which clients skip. HTTP/1.0 has none (RFC 9110, 15.2), so such a client counts as gone.
        """
        self._deadline = None
        if self._answered():
            return
        if self._running is not None and not self._running.response_started:
            if self._running.scope["http_version"] != "1.1":
                self.transport.abort()
                return
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._deadline = self.loop.call_later(pause, self._probe, min(2 * pause, MAX_PROBE_SECONDS))

    def _look(self, pause: float) -> None:
        """Probe once the client has closed its side, which nothing else notices while pipelined requests wait."""
        self._deadline = None
        if not self.pipeline or self.transport.is_closing():  # without others that wait, reading goes on
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), select.POLLRDHUP)
        if not poll.poll(0):
            self._deadline = self.loop.call_later(pause, self._look, min(2 * pause, MAX_PROBE_SECONDS))
        elif self.scheme == "https":
            self.transport.abort()
        else:
            self._probe(pause)

    def leave(self) -> None:
        """Close without an answer. Aborts after `LINGER`, since unread bytes would keep the connection open."""
        self._disarm()
        self.transport.close()
        self._deadline = self.loop.call_later(LINGER, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        self.leave()

    def pause_writing(self) -> None:
        """Called when the system's buffers and ours are full."""
        super().pause_writing()
        if self._unsent is None:
            self._unsent = self._cut_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unsent is not None:
            self._unsent.cancel()
            self._unsent = None
        if self.transport.is_closing():
            self._unsent = self._cut_later()

    def _cut_later(self) -> asyncio.TimerHandle:
        """Cut the answer in `unread_seconds`, unless the client has read enough of it by then."""
        left = self.transport.get_write_buffer_size()
        return self.loop.call_later(self._bounds.unread_seconds, self._cut, left)

    def _cut(self, before: int) -> None:
        if self.transport.get_write_buffer_size() <= before - SLOWEST:
            self._unsent = self._cut_later()
            return
        log.warning("an answer was cut: its client did not read it", extra={"seconds": self._bounds.unread_seconds})
        self.transport.abort()

    # --- parser ---------------------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self._bounds.pipelined:
            raise ValueError("too many requests wait for their answers")  # as `_count` does
        self._head, self._begun, self._is_in_body = 0, True, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _HEADER_MARKS)
        if not self._is_in_body:  # trailers arrive after headers were checked (RFC 9110, 6.5.1)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_upgrade():
            return
        self._refusal = _wrong_coding(self.headers)
        if self._refusal is not None:
            raise ValueError("a transfer coding that is not read")  # as `_count` does
        self._unread, self._is_in_body = 0, True
        self._disarm()
        self._bounds.idle.remove(self)
        super().on_headers_complete()
        if self.pipeline:
            self._deadline = self.loop.call_later(PROBE_SECONDS, self._look, PROBE_SECONDS)
        if self.cycle.scope["http_version"] == "1.0":
            self.cycle.waiting_for_100_continue = False  # such a client would take it for the answer (RFC 9110, 10.1.1)
            _send_without_chunks(self.cycle)
        if not self.cycle.keep_alive:
            self.cycle.transport = cast(asyncio.Transport, _LastAnswer(self))
        self.cycle.transport = cast(asyncio.Transport, _FirstWrite(self.cycle, self.loop))

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_upgrade():
            return
        self._unread, self._begun = 0, False
        if self._answered():
            self._disarm()
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > self._bounds.headers:
            self._refusal = self._too_large()
            raise ValueError("headers over the bound")  # stops the parser, and uvicorn calls send_400_response

    # --- answers --------------------------------------------------------------------------------------------------
    def close_after_answer(self) -> None:
        """Linger before closing, as nginx does, since the rest of a body would discard the answer."""
        if self._begun and not self._refused and not self.transport.is_closing():
            self._refused = True
            self._half_close(self._bounds.unread_seconds if self.transport.get_write_buffer_size() else LINGER)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        if self._refused:
            return
        super().on_response_complete()
        if self.pipeline:  # uvicorn resumes reading when one of them was answered
            self.flow.pause_reading()
        if not self._answered():
            return
        self._disarm()
        if self.transport.is_closing():
            if self._unsent is None:
                self._unsent = self._cut_later()
            return
        self._wait()
        if self._begun:  # the unread rest of a body
            self._arm(self._bounds.header_seconds)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _is_upgrade(self) -> bool:
        """Whether the client offers an upgrade, for which the parser skips the body."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """Answer requests that offer an upgrade like any other, instead of warning.

        Parses the request again without the offer, for its body. Java's client sends `Upgrade: h2c` with each request.
        """
        error = sys.exc_info()[1]
        if not isinstance(error, HttpParserUpgrade) or not self._is_upgrade():
            return
        head = [b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        head += [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        rest = self._data[error.args[0] :]
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._again = b"".join([*head, b"\r\n", rest])

    def send_400_response(self, msg: str) -> None:
        if self._refusal is not None:
            self._refuse(self._refusal)
            return
        error = BadRequest("This is not an HTTP/1.1 request.", code="invalid_http")
        if self.cycle is None or not (self._begun and self.cycle.scope is self.scope):
            if self._answered():
                self._refuse(error)
            else:  # more than the request's length, such as one in characters instead of bytes: answer it first
                self.cycle.keep_alive = False
        elif self._answered():  # this request already has an answer
            self.close_after_answer()
        elif self._running is self.cycle and not self.cycle.response_started:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._refuse(error)
        else:
            self.leave()

    def _refuse(self, error: RoundhouseError) -> None:
        """Send an error and close, unless an answer is in progress."""
        if self._refused:
            return
        self._refused = True
        self._bounds.idle.remove(self)
        if not self._answered() and not self.cycle.disconnected:
            self.leave()
            return
        body = http_errors.encode(error)
        head = (
            b"content-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\nx-request-id: req-%s\r\n\r\n" % (len(body), secrets.token_hex(12).encode())
        )
        self._unset_keepalive_if_required()
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self._half_close(LINGER)

    def _half_close(self, seconds: float) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self._arm(seconds)
        else:
            self.leave()

    # --- times ----------------------------------------------------------------------------------------------------
    def _answered(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._bounds.idle.add(self, self.client[0] if self.client else "")

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, self._over)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _over(self) -> None:
        self._deadline = None
        in_headers = self._begun and (self.cycle is None or self.cycle.scope is not self.scope)
        if in_headers and not self._refused:
            seconds = self._bounds.header_seconds
            self._refuse(RequestTimedOut(f"The request's headers did not come within {seconds:g} s."))
        else:
            self.leave()

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"The request line and headers are over this server's limit of {self._bounds.headers / 2**10:g} KiB."
        )


def _wrong_coding(headers: list[tuple[bytes, bytes]]) -> RoundhouseError | None:
    """The error for an unsupported Transfer-Encoding; the parser only checks the last coding."""
    codings = [value.decode("latin-1").strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings in ([], ["chunked"]):
        return None
    names = [name.strip() for name in ",".join(codings).split(",")]
    if names[-1] != "chunked" or "chunked" in names[:-1]:
        return BadRequest("Send Transfer-Encoding: chunked, once and alone, or Content-Length.", code="invalid_http")
    return UnsupportedCoding(
        f"The transfer coding {quoted(names[0])} is not supported: send the body with Transfer-Encoding: chunked alone."
    )


def _send_without_chunks(cycle: RequestResponseCycle) -> None:
    """End an answer of unknown length with the connection, as HTTP/1.0 has no transfer codings (RFC 9112, 6.1).

    uvicorn would send chunks, whose sizes such a client takes for text.
    """
    send, cycle.chunked_encoding = cycle.send, False

    async def send_as_it_is(message: ASGISendEvent) -> None:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_as_it_is  # type: ignore[method-assign]


class _FirstWrite:
    """The transport of a request until its first bytes are sent: the head together with the first piece of the body.

    uvicorn writes the two separately, and each write is a system call that wakes the client.
    """

    __slots__ = ("_cycle", "_has_left", "_head", "_loop", "_transport")

    def __init__(self, cycle: RequestResponseCycle, loop: asyncio.AbstractEventLoop) -> None:
        self._cycle, self._transport, self._loop = cycle, cycle.transport, loop
        self._head: bytes | None = None
        self._has_left = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head is None:
            self._head = data
            self._loop.call_soon(self._flush)
        elif len(data) > LARGE:
            self._flush()
            self._transport.write(data)
        else:
            self._leave(self._head + data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head is not None and not self._has_left:
            self._leave(self._head)

    def _leave(self, data: bytes) -> None:
        """Write the first bytes, and let the transport write all others."""
        self._has_left, self._cycle.transport = True, self._transport
        self._transport.write(data)


class _LastAnswer:
    """The transport of a last request, which lingers when uvicorn closes it."""

    def __init__(self, connection: GuardedConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection.transport, name)

    def close(self) -> None:
        self._connection.close_after_answer()
