"""Which of peft's ways is taken."""

import pytest

from adapters.compose.plan import Method, plan
from registry.errors import BadRequest


@pytest.mark.parametrize(
    ("method", "ranks", "halves", "kind", "rank"),
    [
        ("linear", [8, 8], False, "cat", 16),
        ("linear", [8, 4], False, "cat", 12),
        ("linear", [8, 16], False, "svd", 16),
        ("ties", [8, 4], False, "ties_svd", 12),
        ("ties", [16, 16], False, "ties_svd", 16),
        ("dare", [8, 8], False, "dare_linear_svd", 16),
        ("linear", [16, 16], True, "linear", 16),
        ("ties", [8, 8, 8], True, "ties", 8),
        ("dare", [8, 8], True, "dare_linear", 8),
    ],
)
def test_kind_and_rank(method: Method, ranks: list[int], halves: bool, kind: str, rank: int) -> None:
    assert plan(method, ranks, 16, halves=halves) == (kind, rank)


def test_halves_need_one_rank() -> None:
    with pytest.raises(BadRequest, match="ranks 8, 4") as refused:
        plan("ties", [8, 4], 16, halves=True)
    assert refused.value.param == "halves"
