"""Read JSON from clients, providers and model files.

`Values` counts the values in a client's JSON while it arrives, before it is decoded. Decoding holds the GIL throughout,
even in a thread, so megabytes of empty lists or of `1e308` would block all streams, and then the engine as well.
Counting is fast and stops at the bound, even if the whole body arrives at once.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from registry.errors import TooLarge

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""msgspec's errors for JSON of another form, for bytes that are not UTF-8, and for deep nesting."""


def read_object(file: Path) -> dict[str, Any]:
    """Read the JSON object in a model's file. Empty if unreadable, since a load reports the fault."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


_OTHERS = bytes(set(range(256)) - set(b'"[{eE'))
_LETTERS = b"eE"
_EXPONENT = re.compile(rb"[0-9][eE]")
EXPONENT = 16
"""Weight of a number with an exponent. msgspec reads one near the largest float digit by digit."""

PIECE = 64 * 1024
"""Bytes that are counted at a time, so that counting ends soon after the bound is passed."""


class Values:
    """Counts lists, objects, strings (including keys) and numbers with an exponent."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._in_text = False
        self._backslash = b""
        """A backslash at the end of the last piece; the escaped character is in the next one."""
        self._digit = b""
        """A digit at the end of the last piece; its exponent may be in the next one."""

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
            if len(outside) > lists:  # an exponent, or true or false
                self._count += EXPONENT * len(_EXPONENT.findall(b'"'.join(self._outside(piece, quotes))))
        self._count += (quotes + self._in_text) // 2
        self._in_text ^= bool(quotes % 2)
        if self._count > self._most:
            raise TooLarge(
                f"This body holds more than {self._most} lists, objects and strings, which is the limit "
                f"(--bounds json_values); a number with an exponent counts as {EXPONENT}. Send it in parts."
            )

    def _outside(self, piece: bytes, quotes: int) -> list[bytes]:
        """Return the parts of a piece that are outside strings."""
        return piece.split(b'"')[self._in_text :: 2] if quotes else [] if self._in_text else [piece]
