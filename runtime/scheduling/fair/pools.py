"""Parts of a model's places in its engine: how many of them a kind of requests may have, and has for certain."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pool:
    """`reserved` places are kept for it, also while it does not use them; it never has more than `most`."""

    reserved: int = 0
    most: int | None = None


class Pools:
    """Which pools may start a request now. '' is the pool of requests that are in none: nothing is reserved for it."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools, self._running = dict(pools), Counter[str]()

    def change(self, pools: Mapping[str, Pool]) -> None:
        self._pools = dict(pools)

    def start(self, pool: str) -> None:
        self._running[pool] += 1

    def end(self, pool: str) -> None:
        self._running[pool] -= 1

    def clear(self) -> None:
        self._running.clear()

    def running(self, pool: str) -> int:
        return self._running[pool]

    def closed(self, names: Iterable[str], places: int) -> frozenset[str]:
        """Of these pools, those that may start nothing while requests have `places` places in all."""
        if not self._pools:
            return frozenset() if self._running.total() < places else frozenset(names)
        free = places - self._running.total()
        unused_reservations = {name: max(0, pool.reserved - self._running[name]) for name, pool in self._pools.items()}
        total = sum(unused_reservations.values())
        return frozenset(
            name for name in names if not self._open(name, free - total + unused_reservations.get(name, 0))
        )

    def full(self, names: Iterable[str], places: int) -> frozenset[str]:
        """Of these pools, those that have all the places that they may ever have."""
        if not self._pools:
            return frozenset()
        reserved = sum(pool.reserved for pool in self._pools.values())
        return frozenset(
            name
            for name in names
            if not self._open(name, places - reserved + self.reserved(name) - self._running[name])
        )

    def reserved(self, name: str) -> int:
        return self._pools[name].reserved if name in self._pools else 0

    def _open(self, name: str, free: int) -> bool:
        most = self._pools[name].most if name in self._pools else None
        return free > 0 and (most is None or self._running[name] < most)
