"""Bounds on the size, content and speed of bodies, for every path.

`guard.memory` decides which body gives way to another. Size bounds apply to the decoded body, the pace to the bytes as
they are sent.

Content-Encoding gzip, deflate and zstd are decoded in small pieces, so a body that expands a thousandfold is refused
before it is in memory. A body may consist of several members or frames (RFC 1952, 2.2; RFC 8878, 3.1).
"""

import asyncio
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import zstandard
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.base.json import Values
from registry.base.wording import quoted
from registry.errors import BadRequest, QueueFull, RequestTimedOut, TooLarge, UnsupportedMedia
from runtime.http.bodies import too_large_error
from runtime.http.errors import error_response
from runtime.http.guard.access import dialect_of
from runtime.http.guard.memory import Body, BodyMemory, Owner, owners_of
from runtime.http.guard.origin import FORMS, STREAMED
from runtime.http.middleware import context_of
from tenants.caller import ANONYMOUS

PIECE = 256 * 2**10
"""Largest decoded piece from zlib, in bytes."""
SLICE = 256
"""Encoded bytes passed to zstd at a time. Every 4 may decode to a block of 128 KiB, so this bounds its pieces."""
WINDOW = 8 * 2**20
"""Largest window in bytes that HTTP decoders have to accept (RFC 9659)."""
MOST_EMPTY = 2**20
"""Most encoded bytes beyond the decoded ones. Empty members and blocks would otherwise make a body endless."""
_ZLIB = 15
_GZIP, _RAW = 16 + _ZLIB, -_ZLIB


class Decoder(Protocol):
    """Decodes one body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded pieces. Raises BadRequest for invalid data."""
        ...

    def finish(self) -> None:
        """End the body. Raises BadRequest if it is incomplete."""
        ...


class ZlibDecoder:
    """gzip or deflate. wbits: as in zlib. None for deflate, which clients send with or without zlib's header."""

    def __init__(self, wbits: int | None) -> None:
        self._wbits = wbits
        self._member: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while data or len(piece) == PIECE:
            if self._member is None:
                self._wbits = self._wbits or (_ZLIB if data[0] & 0x0F == zlib.DEFLATED else _RAW)
                self._member = zlib.decompressobj(self._wbits)
            try:
                piece = self._member.decompress(data, PIECE)
            except zlib.error as error:
                raise _undecodable_error(str(error)) from None
            data = self._member.unconsumed_tail
            if piece:
                yield piece
            if self._member.eof:
                data, piece, self._member = self._member.unused_data, b"", None

    def finish(self) -> None:
        if self._member is not None:
            raise _undecodable_error("it ends too early")


class ZstdDecoder:
    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)
        self._frame: zstandard.ZstdDecompressionObj | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), SLICE):
            part = data[start : start + SLICE]
            while part:
                self._frame = self._frame or self._decompressor.decompressobj()
                try:
                    piece = self._frame.decompress(part)
                except zstandard.ZstdError as error:
                    raise _undecodable_error(str(error)) from None
                if piece:
                    yield piece
                part = b""
                if self._frame.eof:
                    part, self._frame = self._frame.unused_data, None

    def finish(self) -> None:
        if self._frame is not None:
            raise _undecodable_error("it ends too early")


DECODERS: Mapping[str, Callable[[], Decoder]] = {
    "gzip": partial(ZlibDecoder, _GZIP),
    "x-gzip": partial(ZlibDecoder, _GZIP),
    "deflate": partial(ZlibDecoder, None),
    "zstd": ZstdDecoder,
}


def decoder(coding: str) -> Decoder | None:
    """The decoder for a value of Content-Encoding. None if the body is not encoded. Raises UnsupportedMedia."""
    name = coding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in DECODERS:
        raise UnsupportedMedia(
            f"The content coding {quoted(coding)} is not supported: send the body with Content-Encoding gzip, deflate "
            "or zstd, or without.",
            code="unsupported_coding",
        )
    return DECODERS[name]()


def _undecodable_error(why: str) -> BadRequest:
    return BadRequest(
        f"The body is not what its Content-Encoding says: {why}. Send it whole, or without Content-Encoding.",
        code="invalid_body",
    )


@dataclass(frozen=True, slots=True)
class BodyPace:
    """Allows `seconds` for the whole body, plus one more for each `rate` bytes received."""

    seconds: float
    rate: int

    def seconds_left(self, waited: float, size: int) -> float:
        return self.seconds + size / self.rate - waited


STALL_SECONDS = 2.0
"""Seconds of silence after which a client's body may give way to another; see `guard.memory`."""
NO_KEY_BYTES = 64 * 2**10
"""Bytes of a body without a key where keys are required; the console's paths take such bodies."""


class BodyMiddleware:
    """Raises RequestTimedOut, TooLarge, QueueFull or BadRequest from `receive`; endpoints answer in their dialect.

    If FastAPI reads the body itself, it replaces the exception by its own error, and ours is sent instead of that one.
    Only time spent waiting for the client counts, not the endpoint's own time.

    Args:
        most: returns the most bytes of a body by its path. Forms, and bodies on streamed paths, are written to disk
            and have bounds of their own.
        memory: bytes of all other bodies together, until they are answered.
        values: most JSON values in such a body.
    """

    def __init__(
        self, app: ASGIApp, pace: BodyPace, most: Callable[[str], int], memory: BodyMemory, values: int
    ) -> None:
        self._app, self._pace, self._most, self._values = app, pace, most, values
        self._memory = _SharedMemory(memory)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        try:
            coding, declared = _announced(scope)
            decodes = decoder(coding)
        except UnsupportedMedia as refusal:
            await error_response(refusal, dialect_of(scope["path"]))(scope, receive, send)
            return
        caller, most = context_of(scope).caller, self._most(scope["path"])
        if caller is ANONYMOUS:
            most = min(most, NO_KEY_BYTES)
        memory = None if _is_form(scope) or scope["path"] in STREAMED else self._memory
        client = scope.get("client")
        owners = owners_of(caller, client[0] if client else "")
        body = _Body(receive, send, self._pace, most, memory, owners, Values(self._values), declared, decodes)
        try:
            await self._app(scope if decodes is None else _decoded(scope), body.receive, body.send)
        finally:
            body.leave()
        if body.refusal is not None and not body.answered:
            await error_response(body.refusal, dialect_of(scope["path"]))(scope, receive, send)


def _announced(scope: Scope) -> tuple[str, int]:
    """The content coding of a body, empty if there is none, and its encoded size in bytes, 0 if unknown."""
    codings, size = list[str](), 0
    for name, value in scope["headers"]:
        if name == b"content-encoding":
            codings.append(value.decode("latin-1"))
        elif name == b"content-length":
            size = int(value)  # the parser has refused invalid values
    return ", ".join(codings), size


def _decoded(scope: Scope) -> Scope:
    """The scope of a request after its body is decoded here."""
    headers = [header for header in scope["headers"] if header[0] not in (b"content-encoding", b"content-length")]
    return {**scope, "headers": headers}


def _is_form(scope: Scope) -> bool:
    if scope["path"] not in FORMS:
        return False
    return any(name == b"content-type" and value.lower().startswith(b"multipart/") for name, value in scope["headers"])


class _SharedMemory:
    """Carries out the policy: a request that gives way is woken and ends."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._requests: dict[Body, _Body] = {}

    def add(self, request: "_Body", size: int, now: float) -> None:
        """Raises QueueFull."""
        for victim in self._memory.add(request.body, size, now):
            self._requests.pop(victim).give_way()
        self._requests[request.body] = request

    def remove(self, request: "_Body") -> None:
        self._memory.remove(request.body)
        self._requests.pop(request.body, None)


class _Body:
    def __init__(
        self,
        receive: Receive,
        send: Send,
        pace: BodyPace,
        most: int,
        memory: _SharedMemory | None,
        owners: tuple[Owner, ...],
        values: Values,
        declared: int,
        decodes: Decoder | None,
    ) -> None:
        """memory: None for a form. declared: announced bytes as sent. decodes: None for a plain body."""
        self._decoder = decodes
        self._pieces: Iterator[bytes] = iter(())
        """Pieces decoded from the last message that were not delivered yet."""
        self._values, self._declared = values, declared
        self._receive, self._send, self._pace, self._most, self._memory = receive, send, pace, most, memory
        self._size = self._received = 0
        """Bytes delivered, and bytes as sent."""
        self._waited, self._received_all, self._ended = 0.0, False, False
        self._timeout: asyncio.Timeout | None = None
        self.body = Body(owners, STALL_SECONDS)
        self.refusal: BadRequest | RequestTimedOut | TooLarge | QueueFull | None = None
        self.answered = False

    async def receive(self) -> Message:
        if self._ended:
            return await self._receive()
        # endpoints with their own bounds have refused it by now
        if self._memory is not None and max(self._size, self._declared) > self._most:
            self.refusal = too_large_error(self._most)
        if self.refusal is not None:
            raise self.refusal
        try:
            message = await (self._await_message() if self._decoder is None else self._decode(self._decoder))
            data = message.get("body", b"")
            self._size += len(data)
            self._ended = not message.get("more_body", False)
            if self._memory is not None:
                if self._ended and self._size > self._most:  # nobody asks for more of it
                    raise too_large_error(self._most)
                self._values.add(data)
                self._memory.add(self, len(data), asyncio.get_running_loop().time())
        except (BadRequest, TooLarge, QueueFull) as refusal:
            self.refusal = refusal
            raise
        return message

    async def _decode(self, decodes: Decoder) -> Message:
        """The next piece of the decoded body as a message."""
        while (piece := next(self._pieces, None)) is None:
            if self._received_all:
                decodes.finish()
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._await_message()
            if message["type"] != "http.request":
                return message
            if self._received - self._size > MOST_EMPTY:
                raise _undecodable_error("it holds almost nothing")
            self._pieces = decodes.feed(message.get("body", b""))
            self._received_all = not message.get("more_body", False)
        await asyncio.sleep(0)  # a small body may decode into many pieces
        return {"type": "http.request", "body": piece, "more_body": True}

    async def _await_message(self) -> Message:
        """The next message as sent. Raises RequestTimedOut."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.body.await_piece(began)
        try:
            async with asyncio.timeout(self._pace.seconds_left(self._waited, self._received)) as self._timeout:
                message = await self._receive()
        except TimeoutError:
            self.refusal = self.refusal or RequestTimedOut(
                f"The body came too slowly. Send it within {self._pace.seconds:g} s, "
                f"or at {self._pace.rate} bytes a second."
            )
        finally:
            self._timeout = None
        if self.refusal is not None:
            raise self.refusal
        now, size = loop.time(), len(message.get("body", b""))
        self.body.take_piece(size, now, self._pace.rate, STALL_SECONDS)
        self._waited += now - began
        self._received += size
        return message

    def give_way(self) -> None:
        """Abort this body, whose client is silent, because another one needs the memory."""
        self.refusal = RequestTimedOut(
            f"The body stopped coming for {STALL_SECONDS:g} s while others needed its memory. Send it without pauses."
        )
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def leave(self) -> None:
        if self._memory is not None:
            self._memory.remove(self)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self.refusal is not None and message["status"] != self.refusal.status:
                return
            self.answered = True
        if self.answered:
            await self._send(message)
