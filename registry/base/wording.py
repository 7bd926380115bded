"""Wording of messages: amounts, times, quoted texts, and the nearest known names."""

import difflib
from collections.abc import Collection
from datetime import UTC, datetime
from functools import partial
from heapq import nlargest
from itertools import islice

from humanize import naturalsize

LISTED = 10
"""Names listed in one message, because a catalog can hold thousands."""
MAX_QUOTED = 100
"""Characters of a client's text that a message repeats."""
COMPARED, LIKELY, LETTERS = 1000, 40, 64
"""Most names of which the likeliest are compared with an unknown one; most of these; and the letters that count.

difflib is slow for many names that somebody has chosen for that.
"""

size_words = partial(naturalsize, binary=True)
"""Bytes for people, such as '1.5 KiB' for 1536."""


def plain(value: float, form: str = ".6f") -> str:
    """Format an amount for people, to a millionth, such as '1234567' (`g` would give '1.23457e+06')."""
    text = format(value, form)
    return text.rstrip("0").rstrip(".")


def nearest(name: str, names: Collection[str], count: int = LISTED) -> list[str]:
    """Return known names similar to `name`, best first, then others up to `count`."""
    some = list(islice(names, COMPARED))
    name = name[:LETTERS]
    likely = some if len(some) <= LIKELY else nlargest(LIKELY, some, key=lambda other: _common_ends(name, other))
    close = difflib.get_close_matches(name, likely, n=count)
    rest = [other for other in some[: 2 * count] if other not in close]
    return (close + rest)[:count]


def _common_ends(one: str, other: str) -> int:
    """Return how many letters two names have in common at the beginning and at the end."""
    return _common_beginning(one, other) + _common_beginning(one[::-1], other[::-1])


def _common_beginning(one: str, other: str) -> int:
    length = min(len(one), len(other), LETTERS)
    return next((at for at in range(length) if one[at] != other[at]), length)


def quoted(name: str) -> str:
    """Shorten and quote a client's text, so that it is safe to print."""
    return repr(name if len(name) <= MAX_QUOTED else name[:MAX_QUOTED] + "…")


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, at most 200 characters. Empty if it has none."""
    return (str(error).strip().splitlines() or [""])[0][:200]


def cut(text: str, most: int) -> str:
    """Cut a text to at most `most` bytes of UTF-8, with an ellipsis if it was longer."""
    raw = text.encode(errors="replace")
    if len(raw) <= most:
        return text
    return raw[: most - 3].decode(errors="ignore") + "…"


def rfc3339(seconds: float) -> str:
    """Format a time in seconds since the epoch, in UTC: 2026-11-30T09:25:00Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
