"""JSON schemas are rewritten to the few forms that are enforced, or refused with the path of the keyword."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.chat.grammars import patterns
from models.chat.grammars.language import KEYWORDS, REFUSED, RULES, rewrite, rewrite_tag
from models.chat.grammars.parts import SchemaError, dotted
from models.chat.grammars.scalars import SAME, SHORTER
from tests.contract.chat.schemas.drawn import faults

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
REST = patterns.write(patterns.Repeat(patterns.ANY, 0, None))


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "rewritten"),
    [
        (True, {}),
        ({"title": "x", "description": "y", "nullable": True}, {}),
        ({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"type": ["integer", "number"]}, {"type": "number"}),
        ({"enum": ["a", 1, None], "type": ["string", "null"]}, {"enum": ["a", None]}),
        ({"enum": [1, 2, 3, 4], "not": {"const": 2}, "minimum": 2}, {"enum": [3, 4]}),
        ({"const": "a", "type": "integer"}, False),
        ({"minLength": 1, "maxLength": 0}, False),
        ({"properties": {"a": WHOLE}}, closed({"a": WHOLE})),
        ({"properties": {"a": WHOLE}, "required": ["b"]}, closed({"a": WHOLE, "b": {}}, "b")),
        ({"properties": {"a": WHOLE}, "required": ["b"], "additionalProperties": False}, False),
        ({"properties": {"a": False, "b": TEXT}}, closed({"b": TEXT})),
        ({"type": "object", "properties": {}}, {"type": "object", "additionalProperties": False}),
        ({"type": "object"}, {"type": "object", "additionalProperties": {}}),
        (
            {"allOf": [{"properties": {"a": WHOLE}}, {"properties": {"a": {"minimum": 3}, "b": TEXT}}]},
            closed({"a": {"type": "integer", "minimum": 3}, "b": TEXT}),
        ),
        (
            {"allOf": [{"properties": {"a": WHOLE}, "additionalProperties": False}, {"properties": {"b": TEXT}}]},
            closed({"a": WHOLE}),
        ),
        (
            {"properties": {"a": WHOLE, "b": TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {"anyOf": [closed({"a": WHOLE, "b": TEXT}, "a"), closed({"a": WHOLE, "b": TEXT}, "b")]},
        ),
        (
            {"$ref": "#/$defs/n", "minimum": 3, "$defs": {"n": {"type": "integer", "maximum": 9}}},
            {"type": "integer", "minimum": 3, "maximum": 9},
        ),
        ({"$ref": "#n", "$defs": {"x": {"$anchor": "n", **WHOLE}}}, {"$ref": "#/$defs/d0", "$defs": {"d0": WHOLE}}),
        (
            {"type": "array", "items": {"$ref": "#", "maxItems": 1}},
            {
                "type": "array",
                "items": {"$ref": "#/$defs/d0"},
                "$defs": {"d0": {"type": "array", "items": {"$ref": "#/$defs/d0"}, "maxItems": 1}},
            },
        ),
        (
            {"prefixItems": [WHOLE, TEXT], "maxItems": 1},
            {"type": "array", "prefixItems": [WHOLE], "items": False},
        ),
        ({"prefixItems": [WHOLE, False], "maxItems": 0}, {"type": "array", "items": False}),
        ({"type": "array", "minItems": 1}, {"type": "array", "items": {}, "minItems": 1}),
        ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 3}, {"type": "integer", "minimum": 1, "maximum": 2}),
        ({"type": "number", "minimum": 0.1234561}, {"type": "number", "minimum": 0.123457}),
        ({"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 12}, {"enum": [5, 10]}),
        ({"pattern": "^[a-z]+$", "maxLength": 3}, {"type": "string", "pattern": "^(?:[a-z]{1,3})$"}),
        ({"pattern": "^(?:ab)?$", "maxLength": 2}, {"type": "string", "pattern": "^(?:(?:[a][b]){0,1})$"}),
        # zod's strings have both, and formats of their own; pydantic's have formats of OpenAPI, and URLs lengths
        ({"type": "string", "format": "date", "pattern": "^[1-9]$"}, {"type": "string", "pattern": "^(?:[1-9])$"}),
        ({"type": "string", "format": "ulid", "pattern": "^[a-b]"}, {**TEXT, "pattern": f"^(?:[a-b]{REST})$"}),
        ({"type": "string", "format": "password"}, TEXT),
        ({"type": "string", "format": "uri", "minLength": 1}, {"type": "string", "format": "uri"}),
        ({"type": "string", "format": "uuid", "maxLength": 36}, rewrite({"type": "string", "format": "uuid"})),
        (
            {"oneOf": [{"properties": {"k": {"const": k}}, "required": ["k"]} for k in "ab"]},
            {"anyOf": [closed({"k": {"enum": [k]}}, "k") for k in "ab"]},
        ),
        (
            {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": WHOLE},
            {"type": "object", "patternProperties": {"^(?:(?:[a]|[b]))$": WHOLE}, "additionalProperties": False},
        ),
        (
            {"propertyNames": {"enum": ["b", "a"]}, "additionalProperties": WHOLE, "required": ["b", "a"]},
            closed({"a": WHOLE, "b": WHOLE}, "a", "b"),
        ),
        (
            {"propertyNames": {"$ref": "#/$defs/e"}, "additionalProperties": WHOLE, "$defs": {"e": {"enum": ["a"]}}},
            {
                "type": "object", "patternProperties": {"^(?:(?:[a]))$": WHOLE}, "additionalProperties": False,
                "$defs": {"d0": {"enum": ["a"]}},
            },
        ),
    ],
    ids=str,
)  # fmt: skip
def test_schemas_are_rewritten(schema: Any, rewritten: Any) -> None:
    assert rewrite(schema) == rewritten


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"items": {"not": {}}}, "items.not"),
        ({"if": {}, "then": {"type": "string"}}, "then"),
        ({"type": "string", "format": "date", "pattern": "^1999"}, "pattern"),
        ({"type": "string", "format": "regex"}, "format"),
        ({"type": "string", "format": "email", "maxLength": 9}, "format"),
        ({"type": "string", "format": "uri", "maxLength": 9}, "format"),
        ({"type": "string", "format": "uri-reference", "minLength": 1}, "format"),
        ({"allOf": [{"format": "date"}, {"pattern": "^[1-9]$"}]}, "allOf[1].pattern"),
        ({"properties": {"a": {"anyOf": [TEXT, {"$ref": "https://a.example/x"}]}}}, "properties.a.anyOf[1].$ref"),
        ({"$ref": "#/$defs/none"}, "$ref"),
        ({"$ref": "#none"}, "$ref"),
        ({"oneOf": [WHOLE, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "oneOf"),
        ({"allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]}, "allOf[1].pattern"),
        ({"type": "number", "multipleOf": 0.01}, "multipleOf"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf"),
        ({"uniqueItems": True}, "uniqueItems"),
        ({"minProperties": 2}, "minProperties"),
        ({"properties": {"a": {}}, "patternProperties": {"^b": {}}}, "patternProperties"),
        ({"propertyNames": {"enum": ["a", "b"]}, "required": ["a"]}, "propertyNames"),
        ({"patternProperties": {"^a": {}, "^b": {}}}, "patternProperties.^b"),
        ({"type": "strin"}, "type"),
        ({"minLength": -1}, "minLength"),
        ({"minimum": "1"}, "minimum"),
        ({"required": "a"}, "required"),
        ({"properties": {"a": 5}}, "properties.a"),
        ({"properties": {"a": {"$id": "https://a.example/x"}}}, "properties.a.$id"),
        ({"enum": ["a"], "pattern": "("}, ""),
        ({"allOf": [{"anyOf": [{"minLength": n} for n in range(20)]} for _ in range(3)]}, ""),
        (5, ""),
    ],
    ids=str,
)
def test_schemas_are_refused_with_the_path(schema: Any, path: str) -> None:
    with pytest.raises(SchemaError) as refused:
        rewrite(schema)
    assert dotted(refused.value.path) == path


def test_zods_pattern_of_an_address_is_matched_without_its_look_arounds() -> None:
    (old,) = SAME
    for text in (
        "a@b.cd",
        "a.b+c@d-e.f.gh",
        ".a@b.cd",
        "a..b@c.de",
        "a.@b.cd",
        "a'@b.cd",
        "a'b@c.de",
        "a@b..cd",
        "a@b",
    ):
        pattern = rewrite({"type": "string", "format": "email", "pattern": old})["pattern"]
        assert bool(re.search(pattern, text)) == bool(re.search(old, text)), text


@pytest.mark.parametrize(
    ("least", "most"), [(0, 129), (1, 128), (5, 300), (129, 129), (200, 456), (128, 256), (130, None), (0, 256)]
)
def test_many_repetitions_are_written_as_fewer(least: int, most: int | None) -> None:
    counts = re.compile(patterns.write(patterns.Repeat(patterns.Chars(((97, 97),)), least, most)))
    assert all(int(number) <= patterns.MOST_REPEATS for number in re.findall(r"\d+", counts.pattern))
    for count in (0, 1, 4, 5, 127, 128, 129, 130, 199, 200, 255, 256, 257, 299, 300, 301, 456, 457, 600):
        assert bool(counts.fullmatch("a" * count)) == (least <= count and (most is None or count <= most))


@settings(max_examples=50)
@given(st.from_regex(SHORTER["uri"], fullmatch=True))
def test_urls_with_a_length_are_urls(text: str) -> None:
    schema = {"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}
    assert re.search(rewrite(schema)["pattern"], text)
    assert not faults(schema, json.dumps(text))


def test_every_keyword_has_a_rule() -> None:
    ruled = {name for names in RULES for name in names.split(", ")} | REFUSED.keys() | {"additionalItems"}
    assert {name for names in KEYWORDS.values() for name in names} <= ruled


def test_a_chain_of_references_may_be_long() -> None:
    chain = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(60)}
    assert len(rewrite({"$ref": "#/$defs/d0", "$defs": {**chain, "d60": TEXT}})["$defs"]) == 61


def test_schemas_of_a_structural_tag_are_rewritten() -> None:
    tag = {
        "format": {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": {"minLength": 1}}}
    }
    rewritten = rewrite_tag(tag)["format"]["content"]["json_schema"]
    assert rewritten == rewrite({"minLength": 1})
    tag["format"]["content"]["json_schema"] = {"not": {}}  # type: ignore[index]
    with pytest.raises(SchemaError) as refused:
        rewrite_tag(tag)
    assert dotted(refused.value.path) == "format.content.json_schema.not"


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", "(?i)a", r"\bx", r"(a)\1", r"\p{L}", "a^b", "a$b", "a++", "a**", "[z-a]", "[a", "(a", "a)", "*a",
     "a{3,2}", '^"$', r"^\n$", "[", "\\"],
)  # fmt: skip
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(patterns.PatternError):
        patterns.write(patterns.parse(pattern))


PIECES = st.sampled_from(
    ["a", "b", ".", r"\d", r"\w", r"\s", r"\S", r"\D", r"\W", "[ab]", "[^a]", r"[^\d\s]", "(?:a|b)", "(ab)", "é", r"\.",
     r"\u00e9", r"[\w.-]"]
)  # fmt: skip
PATTERNS = st.builds(
    lambda start, pieces, end: start + "".join(pieces) + end,
    st.sampled_from(["", "^"]),
    st.lists(
        st.builds(str.__add__, PIECES, st.sampled_from(["", "*", "+", "?", "{2}", "{1,3}", "+?", "{0,2}"])), max_size=4
    ),
    st.sampled_from(["", "$", "$|a$"]),
)


def sample(pattern: patterns.Pattern, choose: random.Random) -> str:
    """Return a text of plain characters that the pattern matches."""
    match pattern:
        case patterns.Chars():
            spans = re.findall(r"\\?(.)(?:-\\?(.))?", patterns.write(pattern)[1:-1], re.DOTALL)
            first, last = choose.choice(spans)
            return chr(choose.randint(ord(first), ord(last or first)))
        case patterns.Sequence(parts):
            return "".join(sample(part, choose) for part in parts)
        case patterns.Choice(options):
            return sample(choose.choice(options), choose)
        case patterns.Repeat(part, least, most):
            times = choose.randint(least, least + 2 if most is None else most)
            return "".join(sample(part, choose) for _ in range(times))


@settings(deadline=None)
@given(pattern=PATTERNS, choose=st.randoms(use_true_random=False))
def test_texts_of_a_rewritten_pattern_match_the_original(pattern: str, choose: random.Random) -> None:
    parsed = patterns.parse(pattern)
    try:
        patterns.write(parsed)
    except patterns.PatternError:  # only blanks that are escaped in JSON
        return
    text = sample(parsed, choose)
    assert re.search(pattern, text)
    assert not re.search(r'["\\\x00-\x1f]', text)
    least, most = patterns.lengths(parsed)
    assert least <= len(text) <= (len(text) if most is None else most)


@settings(deadline=None)
@given(st.lists(st.text("abé", max_size=3), max_size=5), st.text("abé", max_size=4))
def test_a_free_name_is_found(names: list[str], name: str) -> None:
    assert bool(re.fullmatch(patterns.others(names), name)) == (name not in names)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [7], "$ref": "http://169.254.169.254/latest"}, {"const": 7, "$ref": "file:///etc/passwd"},
        {"enum": [7], "allOf": [{"$ref": "https://a.example/x"}]}, {"enum": [7], "not": {"$ref": "https://a.example/x"}},
        {"enum": [7], "$dynamicRef": "https://a.example/x"}, {"enum": [7], "$id": "https://a.example/", "$ref": "x"},
        closed({"a": {"enum": [7], "$ref": "https://a.example/x"}}, "a"),
    ],
)  # fmt: skip
def test_nothing_is_fetched_for_a_schema(schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """jsonschema fetches the schema behind a URL by itself: any client could have the server call any address."""
    fetched: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda request, *_: fetched.append(request))
    with pytest.raises(SchemaError, match="only references inside the schema are followed"):
        rewrite(schema)
    assert fetched == []
