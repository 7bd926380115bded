"""Made-up sentences in the styles in which people type: plain, with capitals, punctuation, or unknown words."""

from __future__ import annotations

from random import Random

from starter_training.chat.tasks.words import CLUSTERS, COMMON, CONSONANTS, ENDINGS, LETTERS, NAMES, SHORTENED, VOWELS


def random_word(rng: Random) -> str:
    """Draw a made-up word of 1 to 12 letters: half are random letters, half are pronounceable."""
    if rng.random() < 0.5:
        return "".join(rng.choices(LETTERS, k=rng.choice((1, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 8, 9, 10, 12))))
    parts = (
        rng.choice(CLUSTERS if rng.random() < 0.7 else CONSONANTS) + rng.choice(VOWELS)
        for _ in range(rng.choice((1, 1, 2, 2, 3)))
    )
    lead = rng.choice(VOWELS) if rng.random() < 0.15 else ""
    return lead + "".join(parts) + rng.choice(ENDINGS)


def word(rng: Random, unknown: float) -> str:
    """Draw a lower-case word. `unknown` is the share of made-up ones."""
    draw = rng.random()
    if draw < unknown:
        return random_word(rng)
    if draw > 0.985:
        return rng.choice(SHORTENED)
    if draw > 0.97:
        return str(rng.randint(0, 999))
    if draw > 0.94:
        return rng.choice(NAMES)
    return rng.choice(COMMON)


def dress(rng: Random, words: list[str]) -> str:
    """Join words in one of five styles: half of the time plain lower case, otherwise with capitals and punctuation."""
    style = rng.random()
    if style < 0.55:
        return " ".join(words) + (rng.choice(".!?") if rng.random() < 0.1 else "")
    if style < 0.70:
        words = [words[0].capitalize(), *words[1:]]
    elif style < 0.80:
        words = [w.capitalize() for w in words]
    elif style < 0.85:
        words = [w.upper() for w in words]
    else:
        words = [w.capitalize() if rng.random() < 0.3 else w for w in words]
    if len(words) > 2 and rng.random() < 0.2:
        at = rng.randrange(len(words) - 1)
        words[at] += rng.choice(",,,;:")
    if rng.random() < 0.45:
        words[-1] += rng.choice("...!!??")
    return " ".join(words)


def sentence(rng: Random, low: int = 1, high: int = 8) -> str:
    """Draw a sentence of `low` to `high` words, short ones more often. The share of unknown words varies."""
    count = min(rng.randint(low, high), rng.randint(low, high + 2)) if high > low else low
    share = rng.choice((0.0, 0.2, 0.5, 1.0))
    words = [word(rng, share) for _ in range(count)]
    return dress(rng, words)
