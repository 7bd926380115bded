"""Bodies with Content-Encoding gzip, deflate or zstd, decoded piece by piece.

No piece is large, so a body that grows a thousandfold is refused by its bound before it is in memory. A body may be
several members or frames, one after the other (RFC 1952, 2.2; RFC 8878, 3.1).
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol

import zstandard

from registry.base.wording import quoted
from registry.errors import BadRequest, UnsupportedMedia

PIECE = 256 * 2**10
"""Most bytes of a piece that zlib decodes."""
SLICE = 256
"""Encoded bytes that zstd gets at once, which bounds its pieces too: each 4 may become a block of 128 KiB."""
WINDOW = 8 * 2**20
"""Bytes of the largest window that a decoder of HTTP has to accept (RFC 9659); zstd fills it with what it decodes."""
_ZLIB = 15
_GZIP, _RAW = 16 + _ZLIB, -_ZLIB


class Decoder(Protocol):
    """Decodes one body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces in these bytes. Raises BadRequest for what is not encoded so."""
        ...

    def finish(self) -> None:
        """Raises BadRequest for a body that ends too early."""
        ...


class ZlibDecoder:
    """gzip or deflate. wbits: as zlib has it; None: deflate, which clients send with zlib's header or without."""

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
    """The decoder for a value of Content-Encoding; None: there is nothing to decode. Raises UnsupportedMedia."""
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
