"""The device tier of one engine: which adapters are in its places, which are on their way in or out, and how many
running requests hold each."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class _Place:
    leases: int
    last_use: float


class DeviceTier:
    """The places that rules 5 to 7 of `runtime.scheduling.placement` give and take. Who gets one is decided there."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.closing: set[str] = set()
        """In a place that takes no new request."""
        self._placed: dict[str, _Place] = {}
        self._placing: dict[str, str | None] = {}  # digest -> the one whose place it takes

    def __contains__(self, digest: object) -> bool:
        """In a place."""
        return digest in self._placed

    def __iter__(self) -> Iterator[str]:
        """Those in places."""
        return iter(self._placed)

    def open(self) -> list[str]:
        """Those in places that take new requests."""
        return [digest for digest in self._placed if digest not in self.closing]

    @property
    def free(self) -> int:
        """Places that nobody has, is on the way to, or leaves."""
        return self.places - len(self._placed) - len(self._placing)

    def touched(self) -> set[str]:
        """In a place, on its way into one, or on its way out: the engine may still touch its host copy."""
        return {*self._placed, *self._placing, *(d for d in self._placing.values() if d is not None)}

    def incoming(self) -> dict[str, str | None]:
        """On the way into a place, with the one whose place that was."""
        return dict(self._placing)

    def moving(self, digest: str) -> bool:
        """On its way into a place or out of one."""
        return digest in self._placing or digest in self._placing.values()

    def move(self, digest: str, victim: str | None) -> None:
        """`digest` is on its way into a free place, or into that of `victim`, which is out of it from now on."""
        if victim is not None:
            del self._placed[victim]
        self._placing[digest] = victim

    def arrived(self, digest: str, now: float) -> bool:
        """A move ended well. False: none was begun."""
        if digest not in self._placing:
            return False
        del self._placing[digest]
        self._placed[digest] = _Place(0, now)
        return True

    def failed(self, digest: str) -> None:
        """A move ended badly: the place is free, and its victim is out."""
        self._placing.pop(digest, None)

    def remove(self, digest: str) -> None:
        self._placed.pop(digest, None)

    def clear(self) -> None:
        self._placed.clear()
        self._placing.clear()
        self.closing.clear()

    def lease(self, digest: str) -> None:
        self._placed[digest].leases += 1

    def release(self, digest: str) -> None:
        self._placed[digest].leases -= 1

    def leases(self, digest: str) -> int:
        """Running requests with it; 0 when it is in no place."""
        place = self._placed.get(digest)
        return place.leases if place is not None else 0

    def used(self, digest: str, now: float) -> None:
        self._placed[digest].last_use = now

    def last_use(self, digest: str) -> float:
        return self._placed[digest].last_use
