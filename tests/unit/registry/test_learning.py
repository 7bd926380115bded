"""Memory estimates learnt from measurements are bounded and decay."""

from hypothesis import given
from hypothesis import strategies as st

from registry.learning import HALF_LIFE, after_load, decayed_margin, learn_margin, most

BYTES = st.integers(0, 1 << 50)


@given(BYTES, BYTES)
def test_the_learnt_size_rises_at_once_and_falls_slowly(before: int, held: int) -> None:
    counts = after_load(before, held)
    assert held <= counts <= max(before, held)


@given(BYTES, st.integers(1, 1 << 40))
def test_an_outlier_is_forgotten_after_further_loads(before: int, held: int) -> None:
    counts = before
    for _ in range(100):
        counts = after_load(counts, held)
    assert held <= counts <= held + 4


@given(st.integers(0, 1 << 40), BYTES, st.lists(BYTES, max_size=20))
def test_no_series_of_peaks_exceeds_the_bound(working_margin: int, after: int, seen: list[int]) -> None:
    margin = 0
    for held in seen:
        before, margin = margin, learn_margin(margin, after, held, working_margin)
        assert before <= margin <= most(after, working_margin)
        assert margin >= min(held - after, most(after, working_margin))


@given(BYTES, st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_margin_only_decays(margin: int, age: float, more: float) -> None:
    assert 0 <= decayed_margin(margin, age + more) <= decayed_margin(margin, age) <= margin


def test_half_of_a_margin_is_left_after_its_half_life() -> None:
    assert (decayed_margin(1000, 0.0), decayed_margin(1000, HALF_LIFE), decayed_margin(1000, 10 * HALF_LIFE)) == (
        1000,
        500,
        0,
    )
    assert decayed_margin(1000, -5.0) == 1000


def test_an_outlier_of_seven_gigabytes_counts_as_one_gibibyte() -> None:
    assert learn_margin(0, 900 << 20, 7_300_640_768) == 1 << 30
