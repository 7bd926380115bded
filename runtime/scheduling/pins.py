"""Adapters that keep their place once they are in it (rule 7 of `runtime.scheduling.placement`)."""

import sys
from collections.abc import Iterable
from itertools import islice

from registry.errors import Conflict


class Pins:
    """The pinned ones, and which of them are to be brought in although nobody asks for them."""

    def __init__(self) -> None:
        self._needed: dict[str, bool] = {}  # False: it failed, and the pin alone brings it in no more
        self._most = sys.maxsize

    def __bool__(self) -> bool:
        return bool(self._needed)

    def __contains__(self, digest: object) -> bool:
        if len(self._needed) <= self._most:
            return digest in self._needed
        return digest in list(islice(self._needed, self._most))

    def fit(self, places: int) -> None:
        """The engine has so many places now. Of more pins than fit the first ones hold, until there is room again."""
        self._most = max(0, places - 1)

    def add(self, digest: str, places: int) -> None:
        """Of an engine with so many places. Raises Conflict when none would stay open."""
        if digest not in self._needed and len(self._needed) + 1 >= places:
            raise Conflict(
                f"{len(self._needed)} of {places} adapter places are pinned, and one must stay open for others. "
                "Unpin an adapter, or raise memory.adapters.device in the recipe.",
                code="no_place_to_pin",
            )
        self._needed[digest] = True

    def remove(self, digest: str) -> None:
        self._needed.pop(digest, None)

    def failed(self, digest: str) -> None:
        if digest in self._needed:
            self._needed[digest] = False

    def renew(self, digests: Iterable[str] | None = None) -> None:
        """Try those that failed again; None: all."""
        for digest in list(self._needed) if digests is None else digests:
            if digest in self._needed:
                self._needed[digest] = True

    def needed(self) -> list[str]:
        """To be brought in when no request needs the place."""
        return [digest for digest, needed in islice(self._needed.items(), self._most) if needed]
