"""Bounds on the size of grammars, as properties: smaller ones are accepted, larger ones refused by name."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.chat.grammars import sizes
from registry.bounds import USUAL
from registry.errors import BadRequest


def refused(kind: str, value: Any, size: int = 0) -> str:
    """Return the refusal, or ''."""
    try:
        sizes.check(kind, value, size, USUAL)
    except BadRequest as error:
        return f"{error.code}: {error.message}"
    return ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["properties", "enum", "$ref", "pattern", "patternProperties", "$defs", "a", "#"])
            | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.sampled_from(["choice", "regex", "grammar", "json", "structural_tag", "json_object"]), JSON)
def test_any_value_is_accepted_or_refused(kind: str, value: Any) -> None:
    assert refused(kind, value).split(":")[0] in ("", "grammar_too_large", "invalid_grammar")


@given(st.integers(0, 3 * USUAL.grammar_bytes))
def test_a_grammar_may_have_as_many_bytes_as_its_bound(size: int) -> None:
    assert bool(refused("regex", "a", size)) == (size > USUAL.grammar_bytes)


@given(st.integers(0, 10**12), st.sampled_from(["{%d}", "{0,%d}", "{%d,}", "{ 1 , %d }"]))
def test_repetitions_are_bounded_in_each_form_of_grammar(count: int, form: str) -> None:
    text = "(a|b)" + form % count
    over = count > USUAL.repetitions
    assert ("repetitions" in refused("regex", text)) == over
    assert ("repetitions" in refused("grammar", f"root ::= {text}")) == over
    assert ("repetitions" in refused("json", {"items": {"pattern": text}})) == over


@given(st.integers(0, 2 * USUAL.choices))
def test_choices_are_bounded(count: int) -> None:
    assert ("choices" in refused("choice", ["a"] * count)) == (count > USUAL.choices)


@given(st.integers(0, 2_000), st.integers(0, 2_000), st.sampled_from(["properties", "patternProperties", "$defs"]))
def test_properties_are_counted_over_the_whole_schema(first: int, second: int, name: str) -> None:
    schema = {
        name: {f"p{i}": {} for i in range(first)},
        "items": {"anyOf": [{"properties": {f"q{i}": {} for i in range(second)}}]},
    }
    assert ("properties" in refused("json", schema)) == (first + second > USUAL.properties)


@given(st.integers(0, 4_000))
def test_entries_of_an_enum_are_bounded(count: int) -> None:
    assert ("enum" in refused("json", {"items": {"enum": list(range(count))}})) == (count > USUAL.enum_entries)


@given(st.integers(1, 200), st.booleans())
def test_nesting_is_bounded_in_schemas_and_grammars(levels: int, lists: bool) -> None:
    schema: Any = {}
    for _ in range(levels - 1):
        schema = [schema] if lists else {"not": schema}
    assert ("nesting" in refused("json", schema)) == (levels > USUAL.nesting)
    assert ("nesting" in refused("grammar", "root ::= " + "(" * levels)) == (levels > USUAL.nesting)


def test_json_as_text_counts_as_the_same_and_is_not_followed_down_for_ever() -> None:
    assert "nesting" in refused("json", '{"not":' * 5_000 + "{}" + "}" * 5_000)
    assert not refused("json", "{")
    assert "nesting" in refused("structural_tag", "[" * 100 + "]" * 100)


def test_json_as_text_is_counted_before_it_is_read() -> None:
    """Otherwise 128 KiB of 1e308 would block all of the model's streams for 0.6 s."""
    few, many = (f'{{"a": [{"1e308," * count}1]}}' for count in (1000, 20_000))
    assert refused("json", few) == ""
    assert "lists, objects and strings" in refused("json", many)


@given(st.integers(1, 200))
def test_a_circle_of_references_of_any_length(length: int) -> None:
    ring = {f"r{i}": {"$ref": f"#/$defs/r{(i + 1) % length}"} for i in range(length)}
    assert refused("json", {"$defs": ring}).startswith("invalid_grammar")


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
        {"properties": {"next": {"$ref": "#"}}},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/missing"},
        {"$defs": {"a/b~c": {}}, "$ref": "#/$defs/a~1b~0c"},
    ],
)
def test_references_that_end_are_accepted(schema: Any) -> None:
    assert not refused("json", schema)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("grammar", "root ::= [a-z]{" + " " * 120_000),
        ("grammar", "{ " * 60_000),
        ("regex", "a{" + " " * 16_000),
        ("json", {"type": "string", "pattern": "a{1," + " " * 16_000}),
        ("json", {f"p{i}": {"$ref": "#" + "/" * 2_000} for i in range(60)}),
    ],
)
def test_each_part_is_visited_once(kind: str, value: Any) -> None:
    """Within CPU time that any machine reaches. With repeated visits, these would take minutes."""
    began = time.thread_time()
    refused(kind, value, 120_000)
    assert time.thread_time() - began < 5
