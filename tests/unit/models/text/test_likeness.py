"""Whether vectors in 16 bits, or of a padded step, are as good as those that they replace."""

import numpy as np
import pytest

from models.text.embeddings import LIKE_ALONE_16_BIT, _are_alike, _is_like, _is_same, cosine

EXACT = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)


@pytest.mark.parametrize(
    ("narrow", "is_like"),
    [
        ([[3.0, 4.0], [0.0, 0.0]], True),
        ([[6.0, 8.0], [0.0, 0.0]], True),
        ([[4.0, 4.0], [0.0, 0.0]], False),
        ([[0.0, 0.0], [0.0, 0.0]], False),
        ([[3.0, 4.0], [0.0, 1.0]], False),
        ([[float("nan"), 4.0], [0.0, 0.0]], False),
        ([[float("inf"), 4.0], [0.0, 0.0]], False),
    ],
)
def test_directions_count_and_zeros_are_like_zeros_only(narrow: list[list[float]], is_like: bool) -> None:
    """A network whose values all become zero in 16 bits was taken for one that computes well in them."""
    with np.errstate(invalid="ignore"):
        assert _is_like(np.array(narrow, np.float16), EXACT) is is_like


@pytest.mark.parametrize(
    ("second", "single", "double"), [(0.001, True, True), (0.02, False, True), (0.1, False, False)]
)
def test_float32_has_to_be_closer_than_16_bits(second: float, single: bool, double: bool) -> None:
    one, other = np.array([[1.0, 0.0]], np.float32), np.array([[1.0, second]], np.float32)
    assert (_are_alike(one, other, single=True), _are_alike(one, other, single=False)) == (single, double)
    assert cosine(one[0], other[0]) == pytest.approx(1 / (1 + second**2) ** 0.5)
    assert (cosine(one[0], other[0]) >= LIKE_ALONE_16_BIT) is double


def test_values_have_to_be_the_same_beyond_their_direction() -> None:
    one = np.array([[1.0, 2.0]], np.float32)
    assert _is_same(one * 1.00005, one, single=True)
    assert not _is_same(one * 1.01, one, single=True)
    assert _is_same(one * 1.01, one, single=False)
    assert not _is_same(one * 1.1, one, single=False)
    assert not _is_same(one, one[:, :1], single=False)
