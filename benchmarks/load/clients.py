"""Closed-loop load: each client sends its next request as soon as its answer has ended."""

import asyncio
import contextlib
import gc
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import uvloop

from benchmarks.load.client import Connection, Reply, connect
from benchmarks.load.stats import percentile
from benchmarks.peers import processes
from benchmarks.peers.servers import Server

TIMEOUT = 120.0
"""Seconds after which a request counts as failed."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell:
    """One server's figures in one round of one setting.

    Attributes:
        replies: all answers, including failed ones.
        wall: seconds from the first request to the last answer.
        cpu: CPU seconds of the server's process tree in that time.
        client_cpu: CPU seconds of this process in that time.
    """

    replies: Sequence[Reply]
    wall: float = 0.0
    cpu: float = 0.0
    client_cpu: float = 0.0

    @property
    def good(self) -> list[Reply]:
        return [reply for reply in self.replies if reply.error is None]

    @property
    def failures(self) -> Counter[str]:
        return Counter(reply.error for reply in self.replies if reply.error is not None)

    @property
    def tokens(self) -> int:
        return sum(reply.tokens for reply in self.good)

    def ttft_ms(self, q: float) -> float:
        return percentile([reply.ttft for reply in self.good], q) * 1e3

    def total_ms(self, q: float) -> float:
        return percentile([reply.total for reply in self.good], q) * 1e3

    def gap_ms(self, q: float) -> float:
        return percentile([gap for reply in self.good for gap in reply.gaps], q) * 1e3

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.wall

    @property
    def requests_per_second(self) -> float:
        return len(self.good) / self.wall


async def closed_loop(server: Server, requests: Iterable[bytes], at_once: int) -> Cell:
    """Send `requests` with `at_once` clients. A client whose connection broke opens another for its next request."""
    connections = await asyncio.gather(*(connect(server.port) for _ in range(at_once)))
    waiting = iter(requests)
    replies: list[Reply] = []
    try:
        with no_collections():
            cpu, own, began = processes.cpu_seconds(server.pid), time.process_time(), time.perf_counter()
            await asyncio.gather(*(_client(server.port, c, waiting, replies) for c in connections))
            wall = time.perf_counter() - began
            own, cpu = time.process_time() - own, processes.cpu_seconds(server.pid) - cpu
    finally:
        for connection in connections:
            connection.close()
    return Cell(replies, wall, cpu, own)


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Collect garbage now, but not inside this context: it would look like a gap between tokens."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _client(port: int, connection: Connection, waiting: Iterator[bytes], replies: list[Reply]) -> None:
    for request in waiting:
        if not connection.open:
            try:
                connection = await connect(port)
            except OSError:
                replies.append(Reply(time.perf_counter(), error="no connection"))
                continue
        replies.append(await connection.ask(request, TIMEOUT))
    connection.close()


async def ask_until(over: asyncio.Event, server: Server, request: Callable[[], bytes]) -> list[Reply]:
    """Send requests one after another until `over` is set or the connection breaks."""
    replies: list[Reply] = []
    connection = await connect(server.port)
    while not over.is_set() and connection.open:
        replies.append(await connection.ask(request(), TIMEOUT))
    connection.close()
    return replies


async def one(server: Server, request: bytes) -> Reply:
    """Send one request on its own connection."""
    connection = await connect(server.port)
    try:
        return await connection.ask(request, TIMEOUT)
    finally:
        connection.close()


def on_loop(work: Callable[[], Coroutine[None, None, T]]) -> T:
    """Run the client's side on uvloop, which uses less of the cores that it shares with the servers."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())
