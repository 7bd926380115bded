"""Finding the model's name at the beginning of a body that a front passes on."""

import pytest

from runtime.http.fleet.fronts import _BASE, _PART

FORM = b'--x\r\nContent-Disposition: form-data; name="base"\r\nContent-Type: text/plain\r\n\r\nchat\r\n--x--\r\n'


@pytest.mark.parametrize("body", [b'{"name": "a", "base": "chat"}', b'{"base_model_name":"chat"}', FORM])
def test_the_base_is_found(body: bytes) -> None:
    found = _BASE.search(body)
    assert found is not None
    assert b"chat" in found.groups()


def test_the_first_of_several_names_is_found() -> None:
    found = _PART.search(b'{"adapters": [{"weight": 0.5, "name": "legal"}, {"name": "other"}]}')
    assert found is not None
    assert found[1] == b"legal"


@pytest.mark.parametrize(
    "part", [b'name="base"\r\n', b'name="base"\r\nx\r\ny\r\n', b'"adapters":[{', b'"adapters":[{"name"']
)
def test_repeated_beginnings_of_a_match_take_linear_time(part: bytes) -> None:
    """Without bounds inside the patterns, this would take minutes."""
    body = part * (2**20 // len(part))
    assert _BASE.search(body) is None
    assert _PART.search(body) is None
