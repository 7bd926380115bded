"""The record that all sources of training text produce, and their common clean-up."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

MAX_CHARS = 520
"""Most characters of a passage: about 130 word pieces, so that query and passage fit into 192 tokens."""

HELD_OUT_SHARE = 0.12
"""Share of the documents that training never sees."""

_FIRST_SENTENCE = re.compile(r"(.+?[.!?])(?:\s|$)", re.S)


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage with the queries that it answers.

    Attributes:
        document: what is held out as a whole.
        fact: the same for passages that answer the same question, which are never negatives of each other.
        queries: never empty.
    """

    document: str
    fact: str
    text: str
    queries: tuple[str, ...]


def clean(text: str) -> str:
    """Collapse white space and drop reST roles and markup characters, keeping the words."""
    text = re.sub(r":[a-z:+-]+:`[!~]?([^`<]+?)\s*(?:<[^`>]*>)?`", r"\1", text)
    text = text.replace("``", "").replace("**", "")
    text = re.sub(r"`([^`]+)`_?", r"\1", text)
    return re.sub(r"\s+", " ", text).strip()


def cut(text: str, limit: int = MAX_CHARS) -> str:
    """Cut at a word boundary so that at most `limit` characters are left."""
    if len(text) <= limit:
        return text
    return text[:limit].rsplit(" ", 1)[0]


def first_sentence(text: str) -> tuple[str, str]:
    """Return the first sentence and what follows it (both stripped)."""
    found = _FIRST_SENTENCE.match(text)
    if not found:
        return text.strip(), ""
    return found.group(1).strip(), text[found.end() :].strip()


def fraction(key: str) -> float:
    """Return a number in [0, 1) that depends only on `key`, so it is the same on every machine and in every run."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big") / 2**48


def is_held_out(document: str) -> bool:
    """Return whether training must not see this document."""
    return fraction("held-out:" + document) < HELD_OUT_SHARE
