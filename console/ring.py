"""Which adapter stands at which stall of a base's ring.

An engine's places have no numbers; here they get some, so that what stays in a place stays where it is drawn, and what
comes is drawn where its victim was.
"""

from collections.abc import Iterable, Mapping


class Stalls:
    """Stall numbers of one base, by digest."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}

    def assign(self, places: int, placed: Iterable[str], moving: Mapping[str, str | None]) -> dict[str, int]:
        """placed: in a place; moving: on its way into one, with the one whose place it takes."""
        before = self._at
        stalls = {digest: before[digest] for digest in placed if before.get(digest, places) < places}
        for digest, victim in moving.items():
            taken = before.get(digest, before.get(victim or "", places))
            if taken < places and taken not in stalls.values():
                stalls[digest] = taken
        free = iter(sorted(set(range(places)) - set(stalls.values())))
        for digest in (*placed, *moving):
            if digest not in stalls and (number := next(free, None)) is not None:
                stalls[digest] = number
        self._at = stalls
        return stalls
