"""Many paced streams at once, opened as fast as the servers start them, and kept open during the measurement."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from benchmarks.harness import Bench
from benchmarks.load.client import Connection, Reply, connect
from benchmarks.peers.servers import Server
from benchmarks.streams import paced_request

BEGINNING = 32
"""Streams that are opened at the same time; more would measure the listen queue."""
LOOK_SECONDS = 0.005
LASTING_SECONDS = 900.0
"""Length of a stream. Its client always leaves earlier."""
OPENING_SECONDS = 120.0
"""Time to open all streams. Those for which there is no place wait as long as the others run, and never open."""


class Crowd:
    """A context manager that keeps streams open, except those that were lost, until it is left.

    Args:
        servers: the streams' servers, in turn.
        models: the streams' models, in turn.
        pause_ms: milliseconds between two tokens of a stream.
        opening: seconds after which no more streams are opened.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        models: Sequence[str],
        streams: int,
        pause_ms: int,
        opening: float = OPENING_SECONDS,
    ) -> None:
        self._servers, self._models, self._count, self._opening = servers, models, streams, opening
        self._pause_ms, self._tokens = pause_ms, round(LASTING_SECONDS / pause_ms * 1e3)
        self._connections: list[Connection] = []
        self._tasks: list[asyncio.Task[Reply]] = []
        self.replies: list[Reply] = []
        """Streams that were open until the end."""
        self._causes = Counter[str]()
        """Causes of lost streams."""
        self.opening_seconds = 0.0

    async def __aenter__(self) -> Self:
        began = self.now
        with suppress(TimeoutError):
            async with asyncio.timeout(self._opening):
                await asyncio.gather(*(self._open_some(first) for first in range(BEGINNING)))
        self.opening_seconds = self.now - began
        return self

    async def __aexit__(self, *_: object) -> None:
        replies = (connection.reply for connection in self._connections)
        self.replies = [reply for reply in replies if reply is not None]
        self._causes.update(task.result().error or "ended" for task in self._tasks if task.done())
        for connection in self._connections:
            connection.close()
        await asyncio.gather(*self._tasks)

    @property
    def opened(self) -> int:
        """Streams whose first token came in time, or that were lost."""
        return len(self._tasks) + self._causes["no connection"]

    @property
    def not_opened(self) -> int:
        """Streams for which the time to open them was too short."""
        return self._count - self.opened

    @property
    def lost(self) -> int:
        """Streams that were refused, or that ended too early."""
        return self.opened - len(self.replies)

    def count(self, bench: Bench, where: str) -> None:
        """Record the streams and the causes of lost ones. Call it after leaving the crowd."""
        bench.counts[where] += self.opened
        for cause, number in self._causes.items():
            bench.failures[f"{where}: lost: {cause}"] += number

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def events(self) -> int:
        """Tokens so far."""
        running = (connection.reply for connection in self._connections)
        ended = sum(task.result().events for task in self._tasks if task.done())
        return ended + sum(reply.events for reply in running if reply is not None)

    @property
    def open(self) -> int:
        """Number of running streams."""
        return sum(not task.done() for task in self._tasks)

    async def _open_some(self, first: int) -> None:
        for number in range(first, self._count, BEGINNING):
            await self._open(number)

    async def _open(self, number: int) -> None:
        server = self._servers[number % len(self._servers)]
        model = self._models[number // len(self._servers) % len(self._models)]
        try:
            connection = await connect(server.port)
        except OSError:
            self._causes["no connection"] += 1
            return
        task = asyncio.create_task(
            connection.ask(paced_request(model, self._tokens, self._pause_ms), 2 * LASTING_SECONDS)
        )
        self._connections.append(connection)
        self._tasks.append(task)
        try:
            while not task.done() and not (connection.reply is not None and connection.reply.arrivals):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
        except asyncio.CancelledError:
            self._connections.remove(connection)
            self._tasks.remove(task)
            connection.close()
            raise
