"""Counts of waiting lines by batch and name. Updated periodically, because counting 50,000 takes 40 ms."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from batches.lines import WaitingGroup
from batches.store import BatchStore

RECOUNT_SECONDS = 3.0
RETURNED_SECONDS = 0.5
"""The same after lines were returned."""


class WaitingLines:
    """clock: returns seconds since the epoch. Lines that are paused are not counted."""

    def __init__(self, store: BatchStore, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._groups: dict[tuple[str, str], WaitingGroup] = {}
        self._ids: frozenset[str] = frozenset()
        self._counted = -RECOUNT_SECONDS
        self._have_returned = False

    async def of(self, batches: Sequence[str]) -> Sequence[WaitingGroup]:
        """Return the groups of these batches that have lines. Raises Unavailable, QueueFull."""
        ids, age = frozenset(batches), time.monotonic() - self._counted
        is_due = age >= (RETURNED_SECONDS if self._have_returned else RECOUNT_SECONDS)
        if is_due or not self._groups or ids != self._ids:
            now = self._clock()
            self._have_returned, self._ids, self._counted = False, ids, time.monotonic()
            counted = await self._store.read(lambda tables: tables.lines.waiting(list(ids), now))
            self._groups = {(one.batch, one.model): one for one in counted}
        return list(self._groups.values())

    def take(self, batch: str, name: str, requested: int, claimed: int, *, suspects: bool) -> None:
        """Subtract claimed lines. Fewer than requested means that there are no more."""
        group = self._groups.pop((batch, name), None)
        if group is None:
            return
        left = (group.suspects if suspects else group.count) - claimed if claimed == requested else 0
        group = replace(group, suspects=left) if suspects else replace(group, count=left)
        if group.count > 0 or group.suspects > 0:
            self._groups[batch, name] = group

    def give_back(self) -> None:
        """Note that a line waits again."""
        self._have_returned = True
