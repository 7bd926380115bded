"""Counters that forget what they count no more."""

from collections import Counter
from typing import TypeVar

K = TypeVar("K")


def count_down(counter: Counter[K], key: K, by: int = 1) -> None:
    """Count so many less of `key`, and forget it at zero."""
    counter[key] -= by
    if not counter[key]:
        del counter[key]
