"""What the header of a WAV file says of its bytes, read as FFmpeg reads it, which decodes it later.

The standard library's `wave` takes the last of several `fmt ` chunks, where FFmpeg takes the first, and walks over
millions of empty ones.
"""

import struct
from itertools import repeat

HEAD_BYTES = 65_536
"""Of a file: more is not looked at."""
_CHUNKS = 64
"""Recorders and editors write a handful before the sound."""
_PCM = 1


def bytes_a_second(head: bytes) -> int | None:
    """Of plain PCM, by a file's first bytes. None: another form, or no header that is understood."""
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    place, rate = 12, None
    for _ in repeat(None, _CHUNKS):
        if place + 8 > len(head):
            return None
        name, size = struct.unpack_from("<4sI", head, place)
        if name == b"data":
            return rate
        if name == b"fmt " and rate is None:
            if size < 16 or place + 24 > len(head):
                return None
            form, channels, samples, _, _, bits = struct.unpack_from("<HHIIHH", head, place + 8)
            rate = samples * channels * ((bits + 7) // 8)
            if form != _PCM or not rate:
                return None
        place += 8 + size + size % 2
    return None
