"""What a grammar may count, before anything compiles it: pure, and in a time that grows with its bytes only."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from registry.errors import BadRequest

Json = Mapping[str, "Json"] | list["Json"] | str | int | float | bool | None


class Bound(NamedTuple):
    most: int
    what: str


BYTES = Bound(128 << 10, "bytes")
"""OpenAI takes schemas of 120,000 characters."""
REGEX_BYTES = Bound(16 << 10, "bytes of regular expressions")
CHOICES = Bound(2_000, "choices")
"""Compile time grows with their square: 1,000 take 30 ms, 10,000 take 1.1 s and 0.5 GB (xgrammar 0.2.8)."""
PROPERTIES = Bound(1_000, "properties")
ENUM_ENTRIES = Bound(2_000, "enum entries")
"""OpenAI takes 1,000."""
DEPTH = Bound(64, "levels of nesting")
"""As vLLM's own; it looks after it has parsed the whole."""
REPETITIONS = Bound(10_000, "repetitions of a part")

TABLE = (BYTES, REGEX_BYTES, CHOICES, PROPERTIES, ENUM_ENTRIES, DEPTH, REPETITIONS)

_PROPERTIES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_COUNTS = re.compile(r"\{\s*+(\d*+)\s*+(?:,\s*+(\d*+)\s*+)?\}")
"""Possessive: it never goes back, or 128 KiB of blanks would take it minutes."""
_REFERENCES = 64
"""References that may lead to one another before they are taken for a circle."""


def check(kind: str, value: Json, size: int) -> None:
    """Raise BadRequest for a grammar over one of the bounds.

    Args:
        kind: the field of `structured_outputs`: choice, regex, grammar, json or structural_tag.
        value: what it holds; JSON may be text.
        size: its bytes as JSON.
    """
    _within(size, BYTES)
    if kind == "choice":
        _within(len(value) if isinstance(value, list) else 0, CHOICES)
    elif kind == "regex" and isinstance(value, str):
        _pattern(value)
    elif kind == "grammar" and isinstance(value, str):
        _within(_repetitions(value), REPETITIONS)
        _within(_deepest(value), DEPTH)
    elif kind in ("json", "structural_tag"):
        try:
            whole = msgspec.json.decode(value) if isinstance(value, str) else value
        except RecursionError:
            _within(DEPTH.most + 1, DEPTH)
        except msgspec.DecodeError:
            return  # vLLM says what is wrong with it
        else:
            _schema(whole)


def too_large(count: int, bound: Bound) -> BadRequest:
    return BadRequest(
        f"The grammar or schema of this request has {count} {bound.what}; up to {bound.most} are taken. Make it "
        "smaller, or check the answer yourself.",
        code="grammar_too_large",
    )


def _within(count: int, bound: Bound) -> None:
    if count > bound.most:
        raise too_large(count, bound)


def _pattern(text: str) -> None:
    _within(len(text.encode(errors="replace")), REGEX_BYTES)
    _within(_repetitions(text), REPETITIONS)


def _repetitions(text: str) -> int:
    """The largest count of a `{n,m}`. Numbers of over nine digits are as good as one of nine."""
    counts = (number[:9] for found in _COUNTS.finditer(text) for number in found.groups() if number)
    return max(map(int, counts), default=0)


def _deepest(text: str) -> int:
    """How deep the brackets of an EBNF nest; those in strings count as well, which no grammar in use comes near."""
    depth = deepest = 0
    for letter in text:
        if letter == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif letter == ")":
            depth -= 1
    return deepest


def _schema(whole: Json) -> None:
    properties = entries = patterns = 0
    for node, depth in _objects(whole):
        _within(depth, DEPTH)
        for name in _PROPERTIES:
            inside = node.get(name)
            properties += len(inside) if isinstance(inside, Mapping) else 0
            if name == "patternProperties" and isinstance(inside, Mapping):
                for key in inside:
                    _pattern(key)
                    patterns += len(key)
        if isinstance(options := node.get("enum"), list):
            entries += len(options)
        if isinstance(pattern := node.get("pattern"), str):
            _pattern(pattern)
            patterns += len(pattern)
        _within(properties, PROPERTIES)
        _within(entries, ENUM_ENTRIES)
        _within(patterns, REGEX_BYTES)
        if isinstance(reference := node.get("$ref"), str):
            _leads_somewhere(whole, reference)


def _objects(whole: Json) -> Iterator[tuple[Mapping[str, Json], int]]:
    """Each object and its depth, without recursion."""
    left: list[tuple[Json, int]] = [(whole, 1)]
    while left:
        node, depth = left.pop()
        _within(depth - 1, DEPTH)
        if isinstance(node, Mapping):
            yield node, depth
            left += [(inside, depth + 1) for inside in node.values() if isinstance(inside, Mapping | list)]
        elif isinstance(node, list):
            left += [(inside, depth + 1) for inside in node if isinstance(inside, Mapping | list)]


def _leads_somewhere(whole: Json, reference: str) -> None:
    """A reference that leads back to itself describes no text."""
    seen: set[str] = set()
    while reference not in seen and len(seen) < _REFERENCES:
        seen.add(reference)
        target = _target(whole, reference)
        following = target.get("$ref") if isinstance(target, Mapping) else None
        if not isinstance(following, str):
            return
        reference = following
    raise BadRequest(
        f"The schema's $ref {reference[:100]!r} leads back to itself and describes no text: point it to a schema.",
        code="invalid_grammar",
    )


def _target(whole: Json, reference: str) -> Json:
    if not reference.startswith("#"):
        return None
    node = whole
    for key in reference.removeprefix("#").split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping):
            return None
        node = node.get(key)
    return node
