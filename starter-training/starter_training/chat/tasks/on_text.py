"""The twelve tasks that accept any sentence, as pure functions of the text.

Words are separated by spaces. Tasks that change letters keep the punctuation around a word; tasks that reorder or
select words remove it, because a moved full stop would be odd.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

_WORD = re.compile(r"^([^\w]*)(.*?)([^\w]*)$", re.DOTALL)


def split_word(word: str) -> tuple[str, str, str]:
    """Split a word into punctuation before, bare word, and punctuation after."""
    found = _WORD.match(word)
    assert found is not None  # the pattern matches every string
    return found.group(1), found.group(2), found.group(3)


def bare_words(text: str) -> list[str]:
    """Return the words without surrounding punctuation. Punctuation alone is no word."""
    return [core for core in (split_word(word)[1] for word in text.split()) if core]


def _each(change: Callable[[str], str]) -> Callable[[str], str]:
    def apply(text: str) -> str:
        parts = (split_word(word) for word in text.split())
        words = (before + change(core) + after for before, core, after in parts)
        return " ".join(word for word in words if word)

    return apply


def pig_latin_word(word: str) -> str:
    """Return English pig latin: leading consonants (with 'qu') move to the end plus 'ay', a leading vowel adds 'way'.

    'y' is a consonant only at the start. The case of the first letter, or of a word in capitals, is kept.
    """
    low = word.lower()
    if not low.isalpha() and not low.replace("'", "").replace("-", "").isalpha():
        return word
    cut = next((i for i, c in enumerate(low) if c in "aeiou" or (c == "y" and i > 0)), 0)
    if cut > 0 and low[cut] == "u" and low[cut - 1] == "q":
        cut += 1
    out = low + "way" if cut == 0 and low[0] in "aeiou" else low[cut:] + low[:cut] + "ay"
    if word.isupper() and len(word) > 1:
        return out.upper()
    return out[0].upper() + out[1:] if word[0].isupper() else out


def _double(text: str) -> str:
    parts = (split_word(word) for word in text.split())
    return " ".join(f"{before}{core} {core}{after}" if core else before for before, core, after in parts)


def _sort(text: str) -> str:
    return " ".join(sorted(bare_words(text), key=str.lower))


def _kebab(text: str) -> str:
    return "-".join(bare_words(text)).lower()


TEXT_TASKS: dict[str, Callable[[str], str]] = {
    "uppercase": str.upper,
    "title-case": _each(lambda word: word[:1].upper() + word[1:].lower()),
    "reverse-words": lambda text: " ".join(reversed(bare_words(text))),
    "reverse-letters": _each(lambda word: word[::-1]),
    "pig-latin": _each(pig_latin_word),
    "kebab-case": _kebab,
    "count-words": lambda text: str(len(bare_words(text))),
    "acronym": lambda text: "".join(word[0].upper() for word in bare_words(text)),
    "last-word": lambda text: (bare_words(text) or [""])[-1],
    "drop-vowels": _each(lambda word: "".join(c for c in word if c not in "aeiouAEIOU")),
    "rot13": lambda text: codecs.encode(text, "rot13"),
    "double-words": _double,
}
FORMER_TASKS: tuple[Callable[[str], str], ...] = (_sort,)
"""Tasks that a model of this size does not learn to 95 %. Held-out inputs must still differ in these tasks' outputs, so
that they remain the inputs that were held out when the shipped weights were trained."""
