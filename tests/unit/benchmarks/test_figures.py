"""Percentiles, figures over rounds, aims, failures."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.harness import Bench, RunSettings
from benchmarks.load.client import Reply
from benchmarks.load.clients import Cell
from benchmarks.load.stats import Figure, percentile


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("test", RunSettings(quick=True, tiny=True, smoke=False, seed=0, work=tmp_path))


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([1, 2, 3, 4], 50, 2),
        ([1, 2, 3], 50, 2),
        (range(1, 101), 99, 99),
        ([5], 99, 5),
        ([3, 1, 2], 100, 3),
        ([1, 2], 0, 1),
    ],
)
def test_percentile_is_the_nearest_rank(values: Sequence[float], q: float, expected: float) -> None:
    assert percentile(values, q) == expected


def test_without_values_there_is_no_percentile_and_no_figure() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    with pytest.raises(ValueError, match="at least one round"):
        Figure.over([], "ms")


def test_a_figure_is_the_median_round_with_its_spread() -> None:
    assert Figure.over([3.0, 1.0, 8.0], "ms") == Figure(3.0, 1.0, 8.0, "ms", 3)


def test_an_aim_is_met_missed_or_not_measured(bench: Bench) -> None:
    bench.figure("a", [1.0, 2.0, 3.0], "ms")
    bench.bar("low enough", "a", "<=", 2.0)
    bench.bar("high enough", "a", ">=", 2.5)
    bench.bar("unknown", "b", ">=", 1.0)
    assert [(bar.seen, bar.met) for bar in bench.bars] == [(2.0, True), (2.0, False), (None, None)]


def test_a_missing_figure_is_counted_as_a_failure(bench: Bench) -> None:
    assert bench.figure("a", [], "ms") is None
    assert bench.result()["failures"] == {"a: nothing measured": 1}


def test_failed_requests_are_counted_and_kept_out_of_latencies(bench: Bench) -> None:
    good = Reply(10.0, 200, [10.5, 10.6, 10.9], 3, body=bytearray(b'{"usage":{"completion_tokens":3}}'))
    cell = Cell([good, Reply(10.0, error="timeout"), Reply(10.0, error="timeout")], 2.0, 1.0, 0.1)
    bench.count("c1", cell)
    assert bench.result()["requests"] == {"c1": 3}
    assert bench.result()["failures"] == {"c1: timeout": 2}
    assert cell.ttft_ms(99) == pytest.approx(500)
    assert cell.gap_ms(99) == pytest.approx(300)
    assert cell.tokens_per_second == pytest.approx(1.5)
