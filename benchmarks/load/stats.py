"""Percentiles, and figures with their spread over rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


def percentile(values: Sequence[float], q: float) -> float:
    """Return the smallest value that at least `q` percent of the values do not exceed (nearest rank).

    Raises ValueError if there are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * q // 100))
    return ordered[int(rank) - 1]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure over rounds: the median of each round's value, and the lowest and highest round."""

    value: float
    low: float
    high: float
    unit: str
    rounds: int

    @classmethod
    def over(cls, values: Sequence[float], unit: str) -> "Figure":
        """Return the figure of these rounds. Raises ValueError if there are none."""
        if not values:
            raise ValueError("a figure needs at least one round")
        return cls(median(values), min(values), max(values), unit, len(values))


def compared(base: Sequence[float], adapter: Sequence[float]) -> dict[str, float]:
    """Return milliseconds of the base's first token, what an adapter adds at p50, and its p99 over the base's p99."""
    figures = {
        "base_p50": percentile(base, 50), "base_p99": percentile(base, 99),
        "added_p50": percentile(adapter, 50) - percentile(base, 50),
        "p99_over_p99": percentile(adapter, 99) - percentile(base, 99),
    }  # fmt: skip
    return {f"{name}_ms": round(value * 1e3, 2) for name, value in figures.items()}
