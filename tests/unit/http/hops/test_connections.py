"""Connections to nodes: a missing machine is noticed soon, and a busy one has time for its handshakes."""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from registry.errors import NodeFailed
from runtime.gateway.peers import connection
from runtime.gateway.peers.following import PATH
from runtime.gateway.peers.wire.connection import WireConnection
from tests.eventually import PATIENCE
from tests.unit.http.hops.rig import Fleet, Node, opened

TCP_REPAIR = 19
HELD_SECONDS = 1.5
"""A delay longer than bytes may stay unacknowledged in these tests."""


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(connection, "USER_TIMEOUT_MS", 200)
    async with opened(tmp_path) as fleet:
        yield fleet


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a machine that acknowledges nothing, here a listener with a full backlog."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"


async def late(node: Node) -> asyncio.Server:
    """Open a port in front of a node's, which passes bytes on after HELD_SECONDS."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(HELD_SECONDS)
        there, back = await asyncio.open_connection("127.0.0.1", int(node.address.rpartition(":")[2]))
        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

    return await asyncio.start_server(accept, "127.0.0.1", 0)


def test_aiohttp_stores_headers_where_we_remove_them() -> None:
    assert vars(aiohttp.ClientResponse).keys() >= set(connection.KEPT_HEADERS)


async def test_a_missing_machine_is_noticed_soon(fleet: Fleet, silent: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "roundhouse.fleet")
    with pytest.raises(NodeFailed) as failed:
        await fleet.peer_client.ask("GET", "node-1", silent, PATH)
    assert failed.value.again
    (record,) = caplog.records
    assert f"[Errno {errno.ETIMEDOUT}]" in vars(record)["cause"], "noticed by the system before OPEN_SECONDS"


async def test_a_handshake_of_a_busy_node_may_take_longer(fleet: Fleet) -> None:
    node = fleet.node("node-1")
    await fleet.start(node)
    async with await late(node) as port:
        address = f"https://127.0.0.1:{port.sockets[0].getsockname()[1]}"
        async with fleet.peer_client.follow("node-1", address, PATH, PATIENCE) as chunks:
            assert await anext(chunks), "its first report"


def test_a_connection_that_the_node_has_forgotten_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart of its machine, whose kernel then knows no such connection."""
    monkeypatch.setattr(connection, "KEEPALIVE", dict.fromkeys(connection.KEEPALIVE, 1))
    with socket.create_server(("127.0.0.1", 0)) as listener, connection._socket(socket.AF_INET, 0) as made:
        made.settimeout(PATIENCE)
        made.connect(listener.getsockname())
        accepted, _ = listener.accept()
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)  # so that it is closed without a word
        except PermissionError:
            pytest.skip("needs the right to repair connections")
        finally:
            accepted.close()
        with pytest.raises(ConnectionResetError):
            made.recv(1)


async def test_after_this_process_stood_still_it_reads_before_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STILL_SECONDS", 0.1)
    received, loop = asyncio.Queue[bytes](), asyncio.get_running_loop()
    chunks = connection._chunks(cast(Any, SimpleNamespace(readany=received.get)), 0.05)
    loop.call_later(0.01, time.sleep, 0.25)
    loop.call_later(0.02, loop.call_soon, loop.call_soon, received.put_nowait, b"came meanwhile")
    assert await anext(chunks) == b"came meanwhile"
    with pytest.raises(TimeoutError):
        await anext(chunks)


async def test_a_client_that_leaves_as_a_connection_opens_leaves_no_socket_behind(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS would still shut down on the socket's number, which the next socket gets."""
    node = fleet.node("node-1")
    await fleet.start(node)
    pool, address = fleet.peer_client._wire, fleet.peer_client._addresses(node.name, node.address)
    with monkeypatch.context() as patch:
        made = WireConnection.connection_made

        def leave(opened: WireConnection, transport: asyncio.BaseTransport) -> None:
            made(opened, transport)
            opening.cancel()

        patch.setattr(WireConnection, "connection_made", leave)
        opening = asyncio.create_task(pool.open(address))
        with pytest.raises(asyncio.CancelledError):
            await opening
    for another in [await pool.open(address) for _ in range(8)]:
        another.close()
