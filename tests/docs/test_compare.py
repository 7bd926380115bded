"""The comparison of answers: strict about fields' names and values, lenient only where the page says so."""

import json
from pathlib import Path

import pytest

from tests.docs.blocks import examples
from tests.docs.compare import differences, matches, merged
from tests.docs.fill import written


@pytest.mark.parametrize(
    ("displayed", "got", "approx", "same"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, False, True),
        ({"a": 1}, {"b": 1}, False, False),  # a field's name has changed
        ({"a": 1}, {"a": 2}, False, False),
        ({"a": 1}, {"a": True}, False, False),
        ({"a": 1}, {"a": 1.0}, False, False),
        ({"a": "..."}, {"a": [1, {"b": None}]}, False, True),
        ({"a": "..."}, {}, False, False),
        ({"a": "req-..."}, {"a": "req-12"}, False, True),
        ({"a": "req-..."}, {"a": "id-12"}, False, False),
        ([1, 2], [1, 2, 3], False, False),
        ([1, 2, "..."], [1, 2, 3], False, True),
        ([1, 2, "..."], [1], False, False),
        ([{"a": 1}, "..."], [{"b": 1}], False, False),
        ({"score": 0.98}, {"score": 0.9763}, True, True),
        ({"score": 0.98}, {"score": 0.9763}, False, False),
        ({"score": 0.98}, {"score": 0.5}, True, False),
        ({"score": 1.0}, {"score": 1}, False, True),
        ({"score": None}, {"score": 0.5}, True, False),
    ],
)
def test_json_is_compared_by_the_displayed_keys(displayed: object, got: object, approx: bool, same: bool) -> None:
    assert (differences(displayed, got, approx=approx) == []) is same


def test_text_matches_around_dots_and_trailing_spaces() -> None:
    assert matches("HELLO WORLD", "HELLO WORLD  \n")
    assert not matches("HELLO WORLD", "HELLO WORLD!")
    assert matches('data: {"id":"..."}\n\n...\ndata: [DONE]', 'data: {"id":"x"}\n\nmore\n\ndata: [DONE]\n')


def test_a_filled_answer_keeps_its_shape_and_is_right() -> None:
    displayed = {"id": "...", "data": [{"x": 0}, "..."], "gone": 1, "long": "a...z"}
    got = {"id": "abc", "data": [{"x": 1.25, "y": 2}, {"x": 3}], "long": "a b z", "new": 1}
    filled = merged(displayed, got)
    assert filled == {"id": "...", "data": [{"x": 1.25}, "..."], "long": "a...z"}
    assert differences(json.loads(written(filled)), got, approx=False) == []


def test_examples_are_found_in_order(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One\n```bash run\necho 1\n```\ntext\n```json answer\n1\n```\n```python run\nprint(2)\n```\n## Two\n"
        "```js\nnot run\n```\n"
    )
    found = examples(page)
    assert [(e.language, e.line, e.answer.text if e.answer else None) for e in found] == [
        ("bash", 2, "1"),
        ("python", 9, None),
    ]
    page.write_text("```json answer\n1\n```\n")
    with pytest.raises(ValueError, match="without an example"):
        examples(page)
    page.write_text("```bash run\necho\n")
    with pytest.raises(ValueError, match="not closed"):
        examples(page)
