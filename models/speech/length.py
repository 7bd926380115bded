"""An upper bound on a recording's length, before it is decoded.

A WAV file's header is read as FFmpeg reads it, which decodes it later: of several `fmt ` chunks the standard library's
`wave` uses the last and FFmpeg the first, and `wave` walks over millions of empty ones.
"""

import os
import struct
from pathlib import Path

_LEAST_BYTES_A_SECOND = 500
"""4 kbit/s. No speech codec needs less (AMR 4.75, Opus 6); only silence can be smaller."""
_HEAD_BYTES = 65_536
"""Bytes of a file that are read."""
_CHUNKS = 64
"""Most chunks before the sound. Recorders and editors write a handful."""
_PCM, _FLOAT, _A_LAW, _MU_LAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
_EXTENDED = bytes.fromhex("000000001000800000aa00389b71")
"""Follows the kind in the extensible format (24 bits or several channels)."""


def seconds_of(path: Path) -> float:
    """Return an upper bound on a recording's seconds, from its size and, for WAV, its format.

    The length in a WAV file's header is not used: decoders read to the end even if it is 0 or the file has several
    parts.
    """
    try:
        with path.open("rb") as file:
            size, rate = os.fstat(file.fileno()).st_size, _bytes_a_second(file.read(_HEAD_BYTES))
    except OSError:
        return 0.0
    return size / (rate or _LEAST_BYTES_A_SECOND)


def _bytes_a_second(head: bytes) -> int | None:
    """Return the bytes per second of uncompressed sound from a file's beginning; None without a valid header."""
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    offset, rate = 12, None
    for _ in range(_CHUNKS):
        if offset + 8 > len(head):
            return None
        name, size = struct.unpack_from("<4sI", head, offset)
        if name == b"data":
            return rate
        if name == b"fmt " and rate is None:
            rate = _rate_of(head[offset + 8 : offset + 8 + size])
            if not rate:
                return None
        offset += 8 + size + size % 2
    return None


def _rate_of(form: bytes) -> int | None:
    """Return the bytes per second of uncompressed sound, by its valid bits, as decoders do."""
    if len(form) < 16:
        return None
    kind, channels, samples, _, _, bits = struct.unpack_from("<HHIIHH", form)
    if kind == _EXTENSIBLE and len(form) >= 40 and form[26:40] == _EXTENDED:
        kind, bits = struct.unpack_from("<H", form, 24)[0], struct.unpack_from("<H", form, 18)[0] or bits
    if kind == _PCM or (kind == _FLOAT and bits in (32, 64)) or (kind in (_A_LAW, _MU_LAW) and bits == 8):
        return int(samples * channels * ((bits + 7) // 8))
    return None
