"""Collect an adapter's faults, with equal ones of many layers in one sentence."""

import re

MAX_FAULTS = 40
MAX_TEXT = 600
_NAMED = 4


class Faults:
    """Sentences in the order in which they were added.

    `at(module, text)` groups: the same text for 32 layers becomes one sentence that names a few of them.
    """

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str) -> None:
        self._texts.setdefault(text, [])

    def at(self, module: str, text: str) -> None:
        """Add a fault of a module. `text` continues the sentence after the module's name."""
        self._texts.setdefault(text, []).append(module)

    def sentences(self) -> list[str]:
        return few([shorten(_join(modules, text)) for text, modules in self._texts.items()], "faults")


def few(sentences: list[str], what: str) -> list[str]:
    """Return at most MAX_FAULTS sentences; the last one says how many were omitted."""
    if len(sentences) <= MAX_FAULTS:
        return sentences
    return [*sentences[: MAX_FAULTS - 1], f"{len(sentences) - MAX_FAULTS + 1} more {what} are not listed."]


def _join(modules: list[str], text: str) -> str:
    if not modules:
        return text
    named = ", ".join(modules[:_NAMED])
    more = f" and {len(modules) - _NAMED} more" if len(modules) > _NAMED else ""
    return f"{named}{more}: {text}"


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """Make a text printable and short, since it may quote a file."""
    clean = re.sub(r"[^\x20-\x7e\u00a0-\ud7ff]", "?", text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def quote_value(value: object) -> str:
    """Quote a value from a file for a message."""
    return shorten(repr(value), 80)
