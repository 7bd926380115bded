"""Corrects typing errors to words from the examples.

A word that is not in the examples is replaced by one that is, if they differ by one typing error (an added, missing or
wrong letter, or two swapped ones) and if the examples contain the replacement next to one of the text's neighbouring
words. The most frequent such pair wins. So `set an alrm` becomes `set an alarm`, and unknown names stay as they are.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Self

SHORTEST, LONGEST = 3, 40
"""Shortest and longest words that are corrected, in letters."""
MAX_CHARACTERS = 2000
"""Longer texts are not corrected."""
MOST_ALIKE = 100
"""Most candidates for one word. Among 65,000 real words, at most 34 are this similar."""
EDGE = ""
"""Placeholder before the first word and after the last."""
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True, eq=False)
class Spelling:
    """Counts of the words of the examples, in lower case, and of each two in a row."""

    words: Mapping[str, int]
    pairs: Mapping[tuple[str, str], int]
    _near: dict[str, list[str]] = field(init=False, repr=False)
    """Candidate words, by the word itself and by the word without one letter."""

    def __post_init__(self) -> None:
        near: dict[str, list[str]] = {}
        for word in self.words:
            if SHORTEST < len(word) <= LONGEST:
                for shorter in _shorter(word):
                    if len(alike := near.setdefault(shorter, [])) < MOST_ALIKE:
                        alike.append(word)
        object.__setattr__(self, "_near", near)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        words, pairs = Counter[str](), Counter[tuple[str, str]]()
        for text in texts:
            tokens = [EDGE, *(match.group().lower() for match in _WORD.finditer(text)), EDGE]
            words.update(tokens[1:-1])
            pairs.update(pairwise(tokens))
        return cls(words, pairs)

    def corrected(self, text: str) -> str:
        """Return the text with corrected words in lower case and all others unchanged."""
        if len(text) > MAX_CHARACTERS:
            return text
        tokens = [match.group().lower() for match in _WORD.finditer(text)]
        for index, word in enumerate(tokens):
            if SHORTEST <= len(word) <= LONGEST and word not in self.words:
                before = tokens[index - 1] if index else EDGE
                after = tokens[index + 1] if index + 1 < len(tokens) else EDGE
                tokens[index] = self._likeliest(word, before, after)
        corrections = iter(tokens)
        return _WORD.sub(lambda match: _with_case(match.group(), next(corrections)), text)

    def _likeliest(self, word: str, before: str, after: str) -> str:
        most, best = (0, 0, ""), word
        for one in {one for shorter in _shorter(word) for one in self._near.get(shorter, ())}:
            neighbours = self.pairs.get((before, one), 0) + self.pairs.get((one, after), 0)
            if neighbours and (neighbours, self.words[one], one) > most and is_one_error_away(word, one):
                most, best = (neighbours, self.words[one], one), one
        return best


def is_one_error_away(a: str, b: str) -> bool:
    """Whether words differ by one added, missing, wrong or swapped letter."""
    if abs(len(a) - len(b)) > 1:
        return False
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if len(a) > len(b):
        return a[at + 1 :] == b[at:]
    if len(a) < len(b):
        return a[at:] == b[at + 1 :]
    swapped = a[at : at + 2] == b[at : at + 2][::-1] and a[at + 2 :] == b[at + 2 :]
    return a[at + 1 :] == b[at + 1 :] or swapped


def _shorter(word: str) -> Iterator[str]:
    """Yield the word, and the word without each letter: words one error apart share one of these."""
    yield word
    for at in range(len(word)):
        yield word[:at] + word[at + 1 :]


def _with_case(was: str, now: str) -> str:
    return was if was.lower() == now else now


_NEIGHBOURS = {
    key: right
    for row in ("qwertyuiop", "asdfghjkl", "zxcvbnm")
    for key, right in zip(row, row[1:] + row[-2], strict=True)
}


def mistyped(text: str, rng: Random) -> str:
    """Put a typing error into about a seventh of the longer words, into at least one."""
    words = text.split(" ")
    long = [index for index, word in enumerate(words) if len(word) > 3 and word.isalpha()]
    if long:
        for index in rng.sample(long, min(len(long), max(1, round(0.15 * len(words))))):
            words[index] = _with_error(words[index], rng)
    return " ".join(words)


def recased(text: str, rng: Random) -> str:
    """Return the text in capitals, in lower case, or in title case."""
    return rng.choice((str.upper, str.lower, str.title))(text)


def _with_error(word: str, rng: Random) -> str:
    at = rng.randrange(1, len(word) - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return word[:at] + word[at + 1 :]
    if kind == 1:
        return word[:at] + word[at] + word[at:]
    if kind == 2:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return word[:at] + _NEIGHBOURS.get(word[at].lower(), word[at]) + word[at + 1 :]
