"""Tests each number that an OpenAPI document allows in a body, with values that do not fit into 64 bits."""

import json
from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple

from tests.contract.chat.nasty import CHAT, HELLO, MESSAGES, RESPONSES, TEXT

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": HELLO, "max_tokens": 2},
    TEXT: {"model": "tiny", "prompt": "x", "max_tokens": 2},
    RESPONSES: {"model": "tiny", "input": "x", "max_output_tokens": 2},
    MESSAGES: {"model": "tiny", "messages": HELLO, "max_tokens": 2},
    f"{MESSAGES}/count_tokens": {"model": "tiny", "messages": HELLO},
    "/tokenize": {"model": "tiny", "prompt": "x"},
    "/detokenize": {"model": "tiny", "tokens": [1]},
}
"""By path, the fields that each of its bodies needs."""
EXTREMES = tuple(
    str(value) for value in (-(2**63), 2**63, -(2**63) - 1, 2**64, -(2**64), f'"{2**64}"', f"{2.0**64}", "1e400", "NaN")
)
"""Values as JSON, or as what some parsers accept as JSON."""
TEXTS = frozenset({"input", "messages", "tools"})
"""Conversations and tools, whose numbers are part of a prompt or schema."""
DEEPEST = 4
"""Most levels of nested objects and lists."""
HOLE = "a number"


class Field(NamedTuple):
    path: str
    name: str
    value: Any
    """The field's value, with HOLE for the number."""

    def body(self, number: str, bodies: Mapping[str, dict[str, Any]]) -> bytes:
        whole = json.dumps(bodies[self.path] | {self.name: self.value})
        return whole.replace(json.dumps(HOLE), number).encode()


def fields(
    document: dict[str, Any], bodies: Mapping[str, dict[str, Any]], left_out: Collection[str] = TEXTS
) -> list[Field]:
    """Return every place for a number in these bodies of an OpenAPI document, except for the fields `left_out`."""
    found = []
    for path in bodies:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for kind in _kinds(document, content["schema"]):
            for name, schema in kind.get("properties", {}).items():
                if name not in left_out:
                    found += [Field(path, name, value) for value in _places(document, schema, DEEPEST)]
    return [one for number, one in enumerate(found) if one not in found[:number]]


def _kinds(document: dict[str, Any], schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the schemas that a value may follow, without references."""
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        parts = schema["$ref"].removeprefix("#/").split("/")
        yield from _kinds(document, reduce(lambda at, part: at[part], parts, document))
        return
    for name in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(name, ()):
            yield from _kinds(document, one)
    yield schema


def _places(document: dict[str, Any], schema: Any, deep: int) -> Iterator[Any]:
    if not deep:
        return
    for kind in _kinds(document, schema):
        if kind.get("type") in ("integer", "number"):
            yield HOLE
        for value in _places(document, kind.get("items"), deep - 1):
            yield [value]
        for value in _places(document, kind.get("additionalProperties"), deep - 1):
            yield {"1": value}
        properties = kind.get("properties", {})
        needed = {name: _sample(document, properties[name]) for name in kind.get("required", ()) if name in properties}
        for name, inner in properties.items():
            for value in _places(document, inner, deep - 1):
                yield needed | {name: value}


def _sample(document: dict[str, Any], schema: Any) -> Any:
    kind = next((one for one in _kinds(document, schema) if one.keys() & {"type", "enum", "const"}), {})
    if "const" in kind or "enum" in kind:
        return kind.get("const", kind.get("enum", [None])[0])
    usual = {"integer": 1, "number": 1, "string": "x", "boolean": True, "array": [], "object": {}}
    return usual.get(str(kind.get("type")))
