"""Idle connections to other servers, by node, and the opening of new ones."""

import asyncio
import socket
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ssl import SSLContext
from typing import NamedTuple

from runtime.gateway.peers.wire.connection import WireConnection

Address = tuple[int, int, tuple[object, ...]]
"""Family, protocol and socket address."""


class NodeAddress(NamedTuple):
    """A node's name, which is also in its certificate, and the address on which it listens."""

    name: str
    host: str
    port: int


class WirePool:
    """A pool of connections. The most recently used one is taken first, so that extra ones from a peak close.

    Args:
        tls: None for plain connections.
        make_socket: creates a socket for a family and protocol, with the options that must be set before it connects.
        idle_seconds: time until an idle connection is closed.
    """

    def __init__(
        self, tls: SSLContext | None, make_socket: Callable[[int, int], socket.socket], idle_seconds: float
    ) -> None:
        self._tls, self._make_socket, self._idle_seconds = tls, make_socket, idle_seconds
        self._idle: defaultdict[NodeAddress, list[WireConnection]] = defaultdict(list)
        self._sweep: asyncio.TimerHandle | None = None

    def take(self, node: NodeAddress) -> WireConnection | None:
        """Take an idle connection, or None if there is none."""
        idle = self._idle.get(node)
        return idle.pop() if idle else None

    def give(self, node: NodeAddress, connection: WireConnection) -> None:
        """Return a connection after a request. It is closed if it cannot be used again."""
        if not connection.finish():
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle[node].append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(self._idle_seconds, self._close_idle)

    async def open(self, node: NodeAddress) -> WireConnection:
        """Open a connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        for family, protocol, address in await _addresses(node):
            made, connection = self._make_socket(family, protocol), WireConnection(loop, partial(self._forget, node))
            try:
                made.setblocking(False)
                await loop.sock_connect(made, address)
                await loop.create_connection(
                    lambda connection=connection: connection,
                    sock=made,
                    ssl=self._tls,
                    server_hostname=None if self._tls is None else node.name,
                )
                return connection
            except BaseException as error:
                connection.close()  # before its socket, whose file descriptor the next one may get
                made.close()
                if not isinstance(error, OSError):
                    raise
                failure = failure or error
        raise failure or OSError(f"{node.host} has no address")

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connections in list(self._idle.values()):
            for connection in list(connections):
                connection.close()

    def _forget(self, node: NodeAddress, connection: WireConnection) -> None:
        """Forget a connection that broke or was closed, and may have been idle."""
        with suppress(ValueError):
            self._idle[node].remove(connection)
        if not self._idle[node]:
            del self._idle[node]

    def _close_idle(self) -> None:
        """Close connections that have been idle for too long. They are sorted by when they became idle."""
        loop = asyncio.get_running_loop()
        due = loop.time() - self._idle_seconds
        for connections in list(self._idle.values()):
            for connection in [one for one in connections if one.idle_since <= due]:
                connection.close()
        first = min((connections[0].idle_since for connections in self._idle.values() if connections), default=None)
        self._sweep = None if first is None else loop.call_at(first + self._idle_seconds, self._close_idle)


async def _addresses(node: NodeAddress) -> Sequence[Address]:
    """Resolve a node's host. IP addresses need no resolver and thus no thread."""
    try:
        return _look_up(node, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.to_thread(_look_up, node)


def _look_up(node: NodeAddress, flags: int = 0) -> Sequence[Address]:
    answers = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, protocol, address) for family, _, protocol, _, address in answers]
