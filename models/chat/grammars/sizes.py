"""Bounds on a grammar's size before it is compiled, in time linear in its bytes."""

import re
from collections.abc import Iterator, Mapping

import msgspec

from registry.base.json import Values
from registry.bounds import Bounds
from registry.errors import BadRequest, TooLarge

Json = Mapping[str, "Json"] | list["Json"] | str | int | float | bool | None


PATTERNS, LEVELS, REPETITIONS = "bytes of regular expressions", "levels of nesting", "repetitions of a part"

_PROPERTIES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_COUNTS = re.compile(r"\{\s*+(\d*+)\s*+(?:,\s*+(\d*+)\s*+)?\}")
"""Possessive, so that it never backtracks; otherwise 128 KiB of blanks would take minutes."""


def check(kind: str, value: Json, size: int, bounds: Bounds) -> None:
    """Raise BadRequest for a grammar over one of the bounds.

    Args:
        kind: the field of `structured_outputs`: choice, regex, grammar, json or structural_tag.
        value: the field's value; JSON may be text.
        size: its bytes as JSON.
    """
    _within(size, bounds.grammar_bytes, "bytes")
    if kind == "choice":
        _within(len(value) if isinstance(value, list) else 0, bounds.choices, "choices")
    elif kind == "regex" and isinstance(value, str):
        _pattern(value, bounds)
    elif kind == "grammar" and isinstance(value, str):
        _within(_repetitions(value), bounds.repetitions, REPETITIONS)
        _within(_deepest(value), bounds.nesting, LEVELS)
    elif kind in ("json", "structural_tag"):
        try:
            if isinstance(value, str):  # a string counts as one value in the check of the body
                Values(bounds.json_values).add(value.encode(errors="replace"))
                value = msgspec.json.decode(value)
        except TooLarge:
            _within(bounds.json_values + 1, bounds.json_values, "lists, objects and strings")
        except RecursionError:
            _within(bounds.nesting + 1, bounds.nesting, LEVELS)
        except msgspec.DecodeError:
            return  # vLLM reports the fault
        else:
            _schema(value, bounds)


def _within(count: int, most: int, what: str) -> None:
    if count <= most:
        return
    raise BadRequest(
        f"The grammar or schema of this request has {count} {what}; up to {most} are taken. Make it "
        "smaller, or check the answer yourself.",
        code="grammar_too_large",
    )


def _pattern(text: str, bounds: Bounds) -> None:
    _within(len(text.encode(errors="replace")), bounds.regex_bytes, PATTERNS)
    _within(_repetitions(text), bounds.repetitions, REPETITIONS)


def _repetitions(text: str) -> int:
    """Return the largest count of a `{n,m}`. Numbers of over nine digits are truncated."""
    counts = (number[:9] for match in _COUNTS.finditer(text) for number in match.groups() if number)
    return max(map(int, counts), default=0)


def _deepest(text: str) -> int:
    """Return the depth of an EBNF's brackets, including those in strings; real grammars are far below the bound."""
    depth = deepest = 0
    for letter in text:
        if letter == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif letter == ")":
            depth -= 1
    return deepest


def _schema(whole: Json, bounds: Bounds) -> None:
    properties = entries = patterns = 0
    for node, depth in _objects(whole, bounds.nesting):
        _within(depth, bounds.nesting, LEVELS)
        for name in _PROPERTIES:
            inside = node.get(name)
            properties += len(inside) if isinstance(inside, Mapping) else 0
            if name == "patternProperties" and isinstance(inside, Mapping):
                for key in inside:
                    _pattern(key, bounds)
                    patterns += len(key)
        if isinstance(options := node.get("enum"), list):
            entries += len(options)
        if isinstance(pattern := node.get("pattern"), str):
            _pattern(pattern, bounds)
            patterns += len(pattern)
        _within(properties, bounds.properties, "properties")
        _within(entries, bounds.enum_entries, "enum entries")
        _within(patterns, bounds.regex_bytes, PATTERNS)
        if isinstance(reference := node.get("$ref"), str):
            _leads_somewhere(whole, reference, bounds.references)


def _objects(whole: Json, deepest: int) -> Iterator[tuple[Mapping[str, Json], int]]:
    """Iterate over all objects with their depths, without recursion."""
    pending: list[tuple[Json, int]] = [(whole, 1)]
    while pending:
        node, depth = pending.pop()
        _within(depth - 1, deepest, LEVELS)
        if isinstance(node, Mapping):
            yield node, depth
            pending += [(inside, depth + 1) for inside in node.values() if isinstance(inside, Mapping | list)]
        elif isinstance(node, list):
            pending += [(inside, depth + 1) for inside in node if isinstance(inside, Mapping | list)]


def _leads_somewhere(whole: Json, reference: str, most: int) -> None:
    """Raise BadRequest for a reference that only leads back to itself and so describes no text."""
    seen: set[str] = set()
    while reference not in seen and len(seen) < most:
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
