"""Names as labels, bounded: a metric must not grow with what clients send or register."""

from collections.abc import Hashable
from typing import Generic, TypeVar

OTHER = "other"
AGE = 10_000
"""Requests after which what was counted counts half."""
Name = TypeVar("Name", bound=Hashable)


class FirstLabels:
    """The first names that come keep their own label."""

    def __init__(self, most: int) -> None:
        self._most, self._known = most, set[str]()

    def of(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name


class BusiestLabels(Generic[Name]):
    """The names that come most often have their own label; who becomes twice as busy as one of them takes its place.

    A series that is taken away and comes again begins at zero, as after a restart; `other` only ever grows.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts = dict[Name, float]()
        self._own = set[Name]()
        self._seen = 0

    def count(self, name: Name) -> Name | None:
        """Count it. Returns the name whose label it took, if it did."""
        self._counts[name] = self._counts.get(name, 0.0) + 1.0
        self._seen += 1
        if self._seen >= AGE:
            self._seen = 0
            self._counts = {one: count / 2 for one, count in self._counts.items() if count >= 2 or one in self._own}
        if name in self._own:
            return None
        if len(self._own) < self._most:
            self._own.add(name)
            return None
        least = min(self._own, key=lambda one: self._counts.get(one, 0.0))
        if self._counts.get(name, 0.0) <= 2 * self._counts.get(least, 0.0):
            return None
        self._own.remove(least)
        self._own.add(name)
        return least

    def has(self, name: Name) -> bool:
        """Whether it has its own label."""
        return name in self._own
