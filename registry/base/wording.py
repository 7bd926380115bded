"""Messages about unknown names: a few of the nearest known ones."""

import difflib
from collections.abc import Collection
from functools import partial
from itertools import islice

from humanize import naturalsize

LISTED = 10
"""Names in one message: a client can send anything, and a catalog can hold thousands."""
MAX_QUOTED = 100
"""Characters of a client's text that a message repeats."""
COMPARED = 1000
"""Names that are compared letter by letter: bounds the time that an unknown name costs."""

size_words = partial(naturalsize, binary=True)
"""Bytes for people: 1536 -> '1.5 KiB'."""


def plain(value: float, form: str = ".6f") -> str:
    """An amount for people, to a millionth: '1234567', where `g` gives '1.23457e+06'."""
    text = format(value, form)
    return text.rstrip("0").rstrip(".")


def nearest(name: str, names: Collection[str], count: int = LISTED) -> list[str]:
    """Known names like `name`, best first, then others up to `count`."""
    some = list(islice(names, COMPARED))
    close = difflib.get_close_matches(name[:64], some, n=count)
    rest = [other for other in some[: 2 * count] if other not in close]
    return (close + rest)[:count]


def quoted(name: str) -> str:
    """A client's text, cut and in quotes, safe to print."""
    return repr(name if len(name) <= MAX_QUOTED else name[:MAX_QUOTED] + "…")


def cut(text: str, most: int) -> str:
    """Cut a text to at most `most` bytes of UTF-8, with an ellipsis where something is missing."""
    raw = text.encode(errors="replace")
    if len(raw) <= most:
        return text
    return raw[: most - 3].decode(errors="ignore") + "…"
