"""Read JSON from clients, providers and model files.

`Values` counts the values in a client's JSON while it arrives, before it is decoded. To decode holds Python's lock
from its first byte to its last, in a thread too: 4 MB of empty lists kept all streams waiting for 0.3 s, 4 MB of
`1e308` for 11 s, and an engine after that. To count takes 1 ms for 64 KiB at most, and ends at the bound, also where
all of it comes at once.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from registry.errors import TooLarge

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""msgspec's errors for JSON of another form, for bytes other than UTF-8, and for too deep nesting."""


def read_object(file: Path) -> dict[str, Any]:
    """The object in a model's file; empty if unreadable: a load reports the fault."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


_OTHERS = bytes(set(range(256)) - set(b'"[{eE'))
_LETTERS = b"eE"
_EXPONENT = re.compile(rb"[0-9][eE]")
EXPONENT = 16
"""The count of a number with an exponent: 14 us where it is near the largest, which msgspec reads digit by digit."""

PIECE = 64 * 1024
"""Bytes that are counted at a time: 4 MB at once took 0.3 s, however soon the bound was passed."""


class Values:
    """Counts lists, objects, texts (names too) and numbers with an exponent."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._in_text = False
        self._backslash = b""
        """A backslash at the end: what it stands before is in the next piece."""
        self._digit = b""
        """One at the end: the exponent may be in the next piece."""

    def add(self, piece: bytes) -> None:
        """Raises TooLarge over the bound. Invalid JSON is left to the decoder."""
        for start in range(0, len(piece), PIECE):
            self._add(piece[start : start + PIECE])

    def _add(self, piece: bytes) -> None:
        if self._backslash or b"\\" in piece:
            piece = (self._backslash + piece).replace(b"\\\\", b"")
            self._backslash = b"\\" if piece.endswith(b"\\") else b""
            piece = piece.replace(b'\\"', b"")
        piece = self._digit + piece
        self._digit = piece[-1:] if piece[-1:].isdigit() else b""
        marks = piece.translate(None, _OTHERS)
        quotes = marks.count(b'"')
        if quotes // 2 <= self._most:
            outside = b"".join(self._outside(marks, quotes))
            lists = len(outside.translate(None, _LETTERS))
            self._count += lists
            if len(outside) > lists:  # or it is true or false
                self._count += EXPONENT * len(_EXPONENT.findall(b'"'.join(self._outside(piece, quotes))))
        self._count += (quotes + self._in_text) // 2
        self._in_text ^= bool(quotes % 2)
        if self._count > self._most:
            raise TooLarge(
                f"This body holds more than {self._most} lists, objects and texts, which is what one may hold "
                f"(--bounds json_values); a number with an exponent counts as {EXPONENT}. Send it in parts."
            )

    def _outside(self, piece: bytes, quotes: int) -> list[bytes]:
        """The parts of a piece that lie outside of strings."""
        return piece.split(b'"')[self._in_text :: 2] if quotes else [] if self._in_text else [piece]
