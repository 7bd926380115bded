"""Counters that forget what they count no more."""

from collections import Counter
from typing import TypeVar

K = TypeVar("K")


def count_down(counter: Counter[K], key: K) -> None:
    """Count one less of `key`, and forget it at zero."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
