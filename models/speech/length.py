"""An upper bound on a recording's length, before it is decoded.

The header of a WAV file is read as FFmpeg reads it, which decodes it later: the standard library's `wave` takes the
last of several `fmt ` chunks, where FFmpeg takes the first, and walks over millions of empty ones.
"""

import os
import struct
from pathlib import Path

_LEAST_BYTES_A_SECOND = 500
"""4 kbit/s: no codec of speech makes less of it (AMR 4.75, Opus 6); only silence can be smaller."""
_HEAD_BYTES = 65_536
"""Bytes of a file that are read."""
_CHUNKS = 64
"""Recorders and editors write a handful before the sound."""
_PCM, _EXTENSIBLE = 1, 0xFFFE
_EXTENDED_PCM = bytes.fromhex("0100000000001000800000aa00389b71")
"""Mark of the extensible form (24 bits or several channels) that says: plain PCM."""


def seconds_of(path: Path) -> float:
    """Upper bound on a recording's seconds, by its size and, for WAV, its form.

    A WAV file's own word for its length is not asked: decoders read one that says 0, or has several parts, to its end.
    """
    try:
        with path.open("rb") as file:
            size, rate = os.fstat(file.fileno()).st_size, _bytes_a_second(file.read(_HEAD_BYTES))
    except OSError:
        return 0.0
    return size / (rate or _LEAST_BYTES_A_SECOND)


def _bytes_a_second(head: bytes) -> int | None:
    """Bytes a second of plain PCM, by its first bytes; None: no valid header."""
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
    """Bytes a second of a form of plain PCM, by the valid bits, as decoders do."""
    if len(form) < 16:
        return None
    kind, channels, samples, _, _, bits = struct.unpack_from("<HHIIHH", form)
    if kind == _EXTENSIBLE and len(form) >= 40 and form[24:40] == _EXTENDED_PCM:
        kind, bits = _PCM, struct.unpack_from("<H", form, 18)[0] or bits
    return samples * channels * ((bits + 7) // 8) if kind == _PCM else None
