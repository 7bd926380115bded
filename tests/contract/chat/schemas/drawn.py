"""Random JSON schemas of all enforced keywords, alone and combined. Some match nothing or are refused."""

import json
import sys
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from models.chat.grammars.language import TYPES
from models.chat.grammars.scalars import FORMATS

Schema = dict[str, Any]
NAMES = st.sampled_from(["a", "b", "ab", "é", "", "a b", 'q"'])
SMALL = st.integers(0, 4)
NUMBERS = st.one_of(
    st.integers(-30, 30),
    st.floats(-50, 50, allow_nan=False),
    st.sampled_from([0.1, 1e-9, -1e-7, 0.1234567, 1e10, -1e15, 1e30, -1e30]),
)
PATTERNS = st.sampled_from(
    [
        "^a", "b$", "^[a-z]+$", r"^\d{2,3}$", "^[^a]*$", "^a|b$", "^(?:ab|c)+$", r"^\w+@\w+$", "^.$", r"^\S+$", "x",
        "^[A-Z][a-z]*$", "^(a?b){1,2}$", r"^\W\D$", r"^[\u00e0-\u00ff]+$", r"^[\s\S]{1,3}$", "^a{0,2}?b*$", "$", "^$",
        "^(?P<x>a)$",
    ]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-20, 20), st.floats(-100, 100, allow_nan=False),
    st.text('ab"\\\né\u4e2d😀', max_size=3),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2), max_leaves=4
)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries({}, optional=fields)


def _together(*schemas: Any) -> Schema:
    """Merge the keywords of all schemas that are objects. Later ones win."""
    return {key: value for schema in schemas if isinstance(schema, dict) for key, value in schema.items()}


STRINGS = (
    _some(minLength=SMALL, maxLength=st.integers(0, 9))
    | _some(minLength=SMALL, maxLength=SMALL, pattern=PATTERNS)
    | _some(format=st.sampled_from(sorted(FORMATS)))
)
BOUNDED = (
    _some(minimum=NUMBERS, exclusiveMaximum=NUMBERS)
    | _some(minimum=NUMBERS, maximum=NUMBERS, exclusiveMinimum=NUMBERS, exclusiveMaximum=NUMBERS)
    | _some(minimum=st.just(-7), maximum=NUMBERS, multipleOf=st.sampled_from([1, 2, 3, 0.5]))
)


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    first = st.lists(inner, max_size=3)
    return _some(items=inner, minItems=SMALL, maxItems=SMALL) | _some(
        prefixItems=first, items=inner | st.booleans(), minItems=SMALL, maxItems=SMALL
    )


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    required = st.lists(NAMES, max_size=2, unique=True)
    properties = st.dictionaries(NAMES, inner, max_size=3)
    counts = {"minProperties": st.integers(0, 2), "maxProperties": SMALL}
    names = _some(pattern=PATTERNS) | _some(minLength=SMALL) | st.fixed_dictionaries({"enum": st.lists(NAMES)})
    return (
        _some(properties=properties, required=required, additionalProperties=inner | st.booleans(), **counts)
        | _some(patternProperties=st.dictionaries(PATTERNS, inner, min_size=1, max_size=1), **counts)
        | _some(propertyNames=names, additionalProperties=inner, **counts)
    )


def _typed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    all_kinds = (STRINGS, BOUNDED, _arrays(inner), _objects(inner))
    types = st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True)
    of_type = [
        st.builds(lambda fields, kind=kind: {"type": kind, **fields}, fields)
        for kind, fields in zip(("string", "number", "array", "object", "integer"), (*all_kinds, BOUNDED), strict=True)
    ]
    return st.one_of(
        *of_type,
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}, True]),
        st.builds(_together, *all_kinds),
        st.builds(_together, st.builds(lambda kinds: {"type": kinds}, types), *all_kinds),
        st.builds(lambda values, beside: {"enum": values, **beside}, st.lists(VALUES, min_size=1, max_size=4), BOUNDED),
        st.builds(lambda value: {"const": value}, VALUES),
        st.sampled_from([{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}, {"$ref": "#y"}]),
    )


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    typed = _typed(inner)
    lists = st.lists(inner, min_size=1, max_size=3)
    references = st.sampled_from(["#/$defs/x", "#/$defs/y", "#"])
    return st.one_of(
        typed,
        st.builds(lambda listed, beside: _together({"anyOf": listed}, beside), lists, typed),
        st.builds(lambda listed, beside: _together({"allOf": listed}, beside), lists, typed),
        st.builds(lambda listed: {"oneOf": listed}, lists),
        st.builds(lambda reference, beside: _together({"$ref": reference}, beside), references, typed),
    )


LEAVES = st.sampled_from([{}, {"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"enum": ["a", 1]}, False])
INNER = st.recursive(LEAVES, _combined, max_leaves=5)
SCHEMAS: st.SearchStrategy[Schema] = st.builds(
    lambda root, x, y: _together(root, {"$defs": {"x": x, "y": _together({"$anchor": "y"}, y)}}), INNER, INNER, INNER
)
"""Schemas with two definitions, to which they sometimes refer."""


def faults(schema: Schema, text: str) -> list[str]:
    """Return what is wrong with a JSON text according to a schema, including formats."""
    judge = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)  # a text of brackets may nest as deep as it is long
    try:
        return [fault.message for fault in judge.iter_errors(json.loads(text))]
    finally:
        sys.setrecursionlimit(before)
