"""The language of commands and facts that starter-speech understands: words, grammar and the held-out split.

Only the standard library is used, so that every process can import it cheaply. Words that sound alike in
espeak-ng (to/two, for/four) both exist, but only where the sentence around them tells which one is meant.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = [
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
MONTHS = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
]  # fmt: skip
COLOURS = ["red", "green", "blue", "yellow", "orange", "purple", "white", "black", "brown", "pink"]
ROOMS = [
    "kitchen", "bedroom", "bathroom", "garage", "garden", "hallway", "office", "basement", "balcony", "attic",
]  # fmt: skip
DEVICES = [
    "light", "lamp", "fan", "heater", "radio", "television", "camera", "speaker", "oven", "kettle", "printer",
    "computer",
]  # fmt: skip
OPENINGS = ["door", "window", "curtain", "gate", "drawer"]
ADJECTIVES = ["big", "small", "loud", "quiet", "warm", "cold", "new", "old", "bright", "dark"]
FOODS = [
    "apple", "bread", "butter", "cheese", "coffee", "milk", "sugar", "banana", "potato", "tomato", "water", "chicken",
]  # fmt: skip
NAMES = ["alice", "robert", "martin", "sarah", "peter", "julia"]
TIMES = ["morning", "afternoon", "evening", "night", "today", "tomorrow"]
DURATIONS = ["minutes", "hours", "seconds"]
UNITS = ["degrees", "percent", *DURATIONS]
VERBS = ["clean", "check", "repair", "move", "find", "bring", "wash", "paint"]
THINGS = ["song", "list", "alarm", "timer", "meeting", "message"]
OTHER = [
    "turn", "switch", "set", "open", "close", "lock", "start", "stop", "play", "pause", "remind", "call", "send",
    "show", "please", "me", "the", "a", "to", "in", "on", "off", "and", "for", "at", "is", "has", "what", "music",
    "add", "remove", "volume", "temperature", "weather", "up", "down", "next", "last", "left", "right", "all", "every",
    "not", "yes", "no", "hello", "thank", "you", "hundred", "week", "days", "year", "months", "of",
]  # fmt: skip

WORDS: tuple[str, ...] = tuple(
    sorted(
        {
            word
            for group in (
                DIGITS, TEENS, TENS, ORDINALS, DAYS, MONTHS, COLOURS, ROOMS, DEVICES, OPENINGS, ADJECTIVES,
                FOODS, NAMES, TIMES, UNITS, VERBS, THINGS, OTHER,
            )
            for word in group
        }
    )
)  # fmt: skip
"""Every word of the language, sorted."""

_AMBIGUOUS = {"to", "two", "for", "four", "a", "the", "of", "off", "at", "and", "in", "on"}
_SALAD = tuple(word for word in WORDS if word not in _AMBIGUOUS)


def number(rng: random.Random) -> str:
    """Draw a number from zero to nine hundred, in words."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(DIGITS)
    if kind < 0.5:
        return rng.choice(TEENS)
    if kind < 0.6:
        return rng.choice(DIGITS[1:]) + " hundred"
    return rng.choice(TENS) + (" " + rng.choice(DIGITS[1:]) if rng.random() < 0.7 else "")


def _when(rng: random.Random) -> str:
    return rng.choice(["on " + rng.choice(DAYS), rng.choice(TIMES), "at " + number(rng)])


def _please(rng: random.Random) -> str:
    return "please " if rng.random() < 0.15 else ""


def _of(rng: random.Random, *choices: str | Sequence[str]) -> str:
    """Draw a word or phrase from each choice, and join them with spaces. A string is a choice of itself."""
    return " ".join(part if isinstance(part, str) else rng.choice(part) for part in choices)


_Rule = Callable[[random.Random], str]
_RULES: tuple[_Rule, ...] = (
    lambda r: _please(r) + _of(r, ["turn", "switch"], ["on", "off"], "the", COLOURS + ADJECTIVES, DEVICES),
    lambda r: _please(r) + _of(r, "turn", ["on", "off", "up", "down"], "the", DEVICES, "in the", ROOMS),
    lambda r: _of(r, "set the", DEVICES, "to", number(r), UNITS),
    lambda r: _of(r, ["set", "start", "stop"], "a timer for", number(r), DURATIONS),
    lambda r: _of(r, "remind me to", VERBS, "the", DEVICES + OPENINGS, _when(r)),
    lambda r: _of(r, "meeting", ["on", "for"], MONTHS, ORDINALS, "at", number(r)),
    lambda r: _of(r, "play", ADJECTIVES, ["music", "song"], "in the", ROOMS),
    lambda r: _please(r) + _of(r, ["open", "close", "lock"], "the", ROOMS + COLOURS, OPENINGS),
    lambda r: " ".join(r.choice(DIGITS) for _ in range(r.randint(3, 8))),
    lambda r: _of(r, "what is the", ["temperature", "weather"], ["in the " + r.choice(ROOMS), _when(r)]),
    lambda r: _of(r, ["add", "remove"], number(r), FOODS, ["to the list", "and " + r.choice(FOODS)]),
    lambda r: _of(r, ["call", "send a message to", "show me"], NAMES, _when(r)),
    lambda r: _of(r, DAYS, MONTHS, ORDINALS),
    lambda r: _of(r, ["pause", "start", "stop", "show"], "the", [*ORDINALS, "next", "last"], THINGS),
    lambda r: _of(r, "volume", ["up", "down"], number(r), "percent"),
    lambda r: _of(r, "the", FOODS + DEVICES + OPENINGS, "is", ["", "not"], COLOURS + ADJECTIVES),
    lambda r: _of(r, "the", COLOURS + ADJECTIVES, DEVICES + OPENINGS, "is in the", ROOMS),
    lambda r: _of(r, MONTHS, "has", number(r), "days"),
    lambda r: _of(r, "the", ORDINALS, ["week", "meeting"], "of the year is in", MONTHS),
    lambda r: _of(r, NAMES, "has", number(r), ["big", "small", "new", "old"], "and", COLOURS, FOODS),
    lambda r: _of(r, ["hello", "thank you", "yes", "no"], NAMES, ["", "please call me " + r.choice(TIMES)]),
    lambda r: _of(r, "every", DAYS + TIMES, VERBS, "the", ROOMS, "and the", DEVICES + OPENINGS),
)


def sentence(rng: random.Random) -> str:
    """Draw a sentence of 2 to 12 words. A quarter are words in random order, so that context is no safe guide."""
    if rng.random() < 0.27:
        return " ".join(rng.choice(_SALAD) for _ in range(rng.randint(2, 6)))
    text = " ".join(rng.choice(_RULES)(rng).split())
    if rng.random() < 0.1:
        longer = f"{text} and {' '.join(rng.choice(_RULES)(rng).split())}"
        text = longer if longer.count(" ") < 12 else text
    return text


def held_out(text: str) -> bool:
    """Return whether a sentence belongs to the eighth that training never hears."""
    return zlib.crc32(text.encode()) % 8 == 0


def sentences(rng: random.Random, count: int, *, held: bool) -> list[str]:
    """Draw ``count`` sentences from one side of the split."""
    found: list[str] = []
    while len(found) < count:
        text = sentence(rng)
        if held_out(text) == held:
            found.append(text)
    return found
