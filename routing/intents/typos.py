"""Texts as hasty people type them: letters left out, doubled, swapped or hit beside; capitals lost or everywhere."""

from random import Random

_NEIGHBOURS = {
    key: right
    for row in ("qwertyuiop", "asdfghjkl", "zxcvbnm")
    for key, right in zip(row, row[1:] + row[-2], strict=True)
}


def mistyped(text: str, rng: Random, share: float = 0.15) -> str:
    """About `share` of the words of four letters and more get one typing error, at least one word does."""
    words = text.split(" ")
    long = [index for index, word in enumerate(words) if len(word) > 3 and word.isalpha()]
    if long:
        for index in rng.sample(long, min(len(long), max(1, round(share * len(words))))):
            words[index] = _with_error(words[index], rng)
    return " ".join(words)


def recased(text: str, rng: Random) -> str:
    """All capitals, none, or one at each word's beginning."""
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
