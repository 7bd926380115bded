"""Fair turns at a scarce resource: no team waits until all requests of another one have ended."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
PORTION = 50
"""Entries of a list that are built at a time; they take about a millisecond."""


class NoTurn(Exception):
    """No turn came in time."""


class FairTurns:
    """A semaphore of `count` for one event loop, at which waiting owners take turns.

    | call of `take`  | a turn is free | none is free                             |
    |-----------------|----------------|------------------------------------------|
    | begins          | at once        | behind the owner's own earlier calls     |
    | is cancelled    | -              | it is passed over                        |
    | `within` passes | -              | the same; raises NoTurn                  |
    | its block ends  | it is free     | the next owner's first call gets it      |
    """

    def __init__(self, count: int = 1) -> None:
        self._free = count
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Calls of each owner, in order; the owner whose turn is next comes first."""

    @asynccontextmanager
    async def take(self, owner: str, within: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn, at most `within` seconds if given, and hold it while the block runs."""
        if self._free:
            self._free -= 1
        else:
            try:
                async with asyncio.timeout(within):
                    await self._wait(owner)
            except TimeoutError:
                raise NoTurn from None
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, owner: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had just got its turn
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give a turn to the next owner's first call that has not left, and put that owner behind the others."""
        while self._waiting:
            owner = next(iter(self._waiting))
            calls = self._waiting.pop(owner)
            first = calls.popleft()
            if calls:
                self._waiting[owner] = calls
            if not first.cancelled():
                first.set_result(None)
                return
        self._free += 1


class ListBuilder:
    """Builds long lists on one event loop: one at a time, by turns, and each in portions, so that streams go on."""

    def __init__(self) -> None:
        self._turns = FairTurns()

    async def build(self, owner: str, entries: Iterable[T]) -> list[T]:
        """Return the entries as a list. entries: an iterator that computes each entry when it is read."""
        built, rest = list[T](), iter(entries)
        async with self._turns.take(owner):
            while portion := list(islice(rest, PORTION)):
                built += portion
                await asyncio.sleep(0)
        return built
