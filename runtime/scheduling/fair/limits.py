"""What bounds and speeds the order of requests: floors of classes, pools of places, the engine's pace."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tenants.caller import ServiceClass


class Floors:
    """A class that waits earns `share` of all the work that starts; while it has earned some, it goes before those
    above it, and pays for what it starts. It may start more than it earned once, and then earns that first: so
    it gets its share to within one request, and one that comes rarely does not get ahead of others each time.
    """

    def __init__(self, share: float) -> None:
        """Raises ValueError for a share that leaves nothing for the highest class."""
        if not 0 <= share < 0.5:
            raise ValueError("a floor is at least 0 and less than a half")
        self.share = share
        self._earned = dict.fromkeys(ServiceClass, 0.0)

    def owed(self, service_class: ServiceClass) -> bool:
        return self._earned[service_class] > 0

    def order(self, waiting: Collection[ServiceClass]) -> list[ServiceClass]:
        """The classes that wait, by who goes first."""
        return sorted(waiting, key=lambda one: one if self._earned[one] <= 0 else one - len(self._earned))

    def done(self, service_class: ServiceClass, work: float, waiting: Collection[ServiceClass], *, pays: bool) -> None:
        """Work began, or turned out to be so much more; `pays`: it went before others by its floor."""
        if pays:
            self._earned[service_class] -= work
        for one in waiting:
            if one is not ServiceClass.CRITICAL:
                self._earned[one] += self.share * work

    def clear_credit(self, service_class: ServiceClass) -> None:
        """Nothing of it waits any more: what it earned is gone, what it owes is not."""
        self._earned[service_class] = min(0.0, self._earned[service_class])


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
        """Those of these pools that may start nothing while requests have `places` places in all."""
        if not self._pools:
            return frozenset() if self._running.total() < places else frozenset(names)
        free = places - self._running.total()
        unused_reservations = {name: max(0, pool.reserved - self._running[name]) for name, pool in self._pools.items()}
        total = sum(unused_reservations.values())
        return frozenset(
            name for name in names if not self._open(name, free - total + unused_reservations.get(name, 0))
        )

    def full(self, names: Iterable[str], places: int) -> frozenset[str]:
        """Those of these pools that have as many places as they may ever have."""
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


LEARNING_RATE = 0.1


class Pace:
    """Running means of a request's seconds in the engine and of its work."""

    def __init__(self) -> None:
        self.is_known = False
        self._seconds, self._work = 0.5, 1.0

    def ended(self, seconds: float, work: float) -> None:
        part = LEARNING_RATE if self.is_known else 1.0
        self._seconds += part * (seconds - self._seconds)
        self._work += part * (work - self._work)
        self.is_known = True

    def seconds(self, work: float, at_once: int) -> float:
        """Until so much work that waits has begun, and one more request can: so many run at once."""
        return self._seconds * (1 + work / self._work) / max(1, at_once)

    def work(self, seconds: float) -> float:
        """That an engine with one request does in so long; 0 before anything was measured."""
        return self._work * seconds / self._seconds if self.is_known and self._seconds else 0.0
