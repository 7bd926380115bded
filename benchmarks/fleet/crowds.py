"""Many paced streams at once, opened as fast as the servers begin them, and all held for a while."""

import asyncio
from collections.abc import Sequence
from typing import Self

from benchmarks.load.client import Connection, Reply, connect
from benchmarks.load.clients import TIMEOUT, Cell
from benchmarks.peers.servers import Server
from benchmarks.streams import paced_request

BEGINNING = 32
"""Streams that wait for their first token at a time while the crowd is opened: more would measure the listen queue."""
LOOK_SECONDS = 0.005
PER_SECOND = 100
"""Streams that are surely opened in a second, also on a busy machine: the streams last that much longer."""
LEAST = 3
"""Tokens of a stream, however late it is opened."""


class Crowd:
    """A context manager: within it all streams are open. They end by themselves, and then `cell` has their replies.

    Args:
        servers: take turns.
        models: take turns, too.
        pause_ms: between two tokens of a stream.
        seconds: how long the streams last once all are open.
    """

    def __init__(
        self, servers: Sequence[Server], models: Sequence[str], streams: int, pause_ms: int, seconds: float
    ) -> None:
        self._servers, self._models, self._count, self._pause_ms = servers, models, streams, pause_ms
        self._lasting = seconds + streams / PER_SECOND
        self._connections: list[Connection] = []
        self._tasks: list[asyncio.Task[Reply]] = []
        self._end = 0.0
        self.cell = Cell([])
        self.opening_seconds = 0.0

    async def __aenter__(self) -> Self:
        began = self.now
        self._end = began + self._lasting
        await asyncio.gather(*(self._open_some(first) for first in range(BEGINNING)))
        self.opening_seconds = self.now - began
        return self

    async def __aexit__(self, *_: object) -> None:
        replies = await asyncio.gather(*self._tasks)
        self.cell = Cell(replies, self.now - self._end + self._lasting)
        for connection in self._connections:
            connection.close()

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def events(self) -> int:
        """Tokens until now."""
        under_way = (connection.reply for connection in self._connections)
        ended = sum(task.result().events for task in self._tasks if task.done())
        return ended + sum(reply.events for reply in under_way if reply is not None)

    @property
    def open(self) -> int:
        """Streams that run."""
        return sum(not task.done() for task in self._tasks)

    async def wait(self, seconds: float) -> None:
        """Let them run, at most until they end."""
        await asyncio.sleep(max(0.0, min(seconds, self._end - self.now - 0.5)))

    async def _open_some(self, first: int) -> None:
        for number in range(first, self._count, BEGINNING):
            await self._open(number)

    async def _open(self, number: int) -> None:
        server = self._servers[number % len(self._servers)]
        model = self._models[number // len(self._servers) % len(self._models)]
        tokens = max(LEAST, round((self._end - self.now) / self._pause_ms * 1e3))
        try:
            connection = await connect(server.port)
        except OSError:
            self._tasks.append(asyncio.create_task(_refused(self.now)))
            return
        request = paced_request(model, tokens, self._pause_ms)
        task = asyncio.create_task(connection.ask(request, self._lasting + TIMEOUT))
        self._connections.append(connection)
        self._tasks.append(task)
        while not task.done() and not (connection.reply is not None and connection.reply.arrivals):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)


async def _refused(now: float) -> Reply:
    return Reply(now, error="no connection")
