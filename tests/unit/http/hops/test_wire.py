"""One connection to a node: answers that are whole, late, cut, too long, or unexpected."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from runtime.gateway.peers.wire import connection as wire
from runtime.gateway.peers.wire import pool
from runtime.gateway.peers.wire.connection import WireConnection
from runtime.gateway.peers.wire.pool import NodeAddress, WirePool
from tests.eventually import PATIENCE

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: node\r\ncontent-length: %d\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Name: value\r\n\r\nok"
SYSTEM_READ = 2**18
"""Bytes that asyncio reads at a time."""
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A node that follows a script on each connection."""

    def __init__(self, script: Script) -> None:
        self._script, self.connections = script, 0
        self.pool = WirePool(None, lambda family, protocol: socket.socket(family, proto=protocol), PATIENCE)
        self.address: NodeAddress

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._script(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def request(self, body: bytes = b"{}") -> AsyncIterator[WireConnection]:
        connection = self.pool.take(self.address) or await self.pool.open(self.address)
        try:
            await connection.send(HEAD % len(body), body)
            yield connection
        finally:
            self.pool.give(self.address, connection)

    async def answer(self, body: bytes = b"{}") -> tuple[int, bytes]:
        async with self.request(body) as connection:
            return connection.status, b"".join([data async for data in _chunks(connection)])


async def _chunks(connection: WireConnection) -> AsyncIterator[bytes]:
    while data := await connection.read():
        yield data


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Server]:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        server = Server(script)
        listener = await asyncio.start_server(server._accept, "127.0.0.1", 0)
        stack.callback(listener.close)
        stack.callback(server.pool.close)
        server.address = NodeAddress("node", "127.0.0.1", listener.sockets[0].getsockname()[1])
        yield server


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))


def always(answer: bytes, *, then_closes: bool = False) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            await read_request(reader)
            writer.write(answer)
            if then_closes:
                return

    return script


async def test_a_node_is_reached_at_another_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `localhost`, whose first address is one of IPv6."""
    async with serving(always(WHOLE)) as server:
        good, sockets = await pool._addresses(server.address), list[socket.socket]()
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))

            async def both(_: NodeAddress) -> Sequence[pool.Address]:
                return [(socket.AF_INET, socket.IPPROTO_TCP, silent.getsockname()), *good]

            def make(family: int, protocol: int) -> socket.socket:
                sockets.append(socket.socket(family, proto=protocol))
                return sockets[-1]

            monkeypatch.setattr(pool, "_addresses", both)
            monkeypatch.setattr(server.pool, "_make_socket", make)
            assert await server.answer() == (200, b"ok")
        assert [made.fileno() == -1 for made in sockets] == [True, False], "only the first is closed"


async def test_a_connection_is_reused_for_the_next_request() -> None:
    async with serving(always(WHOLE)) as server:
        for _ in range(3):
            async with server.request() as connection:
                assert (connection.status, await connection.read(), await connection.read()) == (200, b"ok", b"")
                assert (b"x-name", b"value") in connection.headers
        assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WHOLE,
    ],
    ids=["chunked", "interim answers"],
)
async def test_answers_in_other_framings_are_read_alike(answer: bytes) -> None:
    async with serving(always(answer)) as server:
        assert [await server.answer(), await server.answer()] == [(200, b"ok")] * 2
        assert server.connections == 1


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    left = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await always(WHOLE)(reader, writer)
        except asyncio.IncompleteReadError:
            left.set()

    async with serving(script) as server:
        monkeypatch.setattr(server.pool, "_idle_seconds", 0.05)
        assert await server.answer() == (200, b"ok")
        async with server.request() as connection:  # while one is in use, none is idle
            assert await connection.read() == b"ok"
            assert await connection.read() == b""
        await left.wait()
        assert server.pool.take(server.address) is None


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"no HTTP at all\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"],
    ids=["nothing", "part of a head", "another protocol", "an interim answer only"],
)
async def test_an_answer_that_does_not_begin_is_an_error(answer: bytes) -> None:
    async with serving(always(answer, then_closes=True)) as server:
        with pytest.raises(ConnectionError, match=r"disconnected|no answer of HTTP"):
            await server.answer()


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"x: 1\r\n"),
        (b"HTTP/1.1 200 OK\r\nx: ", b"1234567890"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n0\r\n", b"x: 1\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"1234567890"),
    ],
    ids=["interim answers", "headers", "one header", "trailers", "chunk extension"],
)
async def test_an_answer_with_an_endless_head_is_an_error(begin: bytes, again: bytes) -> None:
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(begin)
        while sent < 2**26:
            writer.write(again * 1000)
            await writer.drain()
            sent += 1000 * len(again)

    async with serving(script) as server:
        with pytest.raises(OSError, match="too long"):
            await server.answer()
    assert sent < 2**26


async def test_the_received_part_of_a_cut_answer_is_passed_on_before_the_error() -> None:
    cut = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n5\r\nha"
    async with serving(always(cut, then_closes=True)) as server, server.request() as connection:
        read = await connection.read()
        while len(read) < len(b"okha"):
            read += await connection.read()
        assert read == b"okha"
        with pytest.raises(ConnectionError, match="disconnected"):
            await connection.read()


@pytest.mark.parametrize(
    "answer", [WHOLE + WHOLE, WHOLE.replace(b"X-Name: value", b"Connection: close")], ids=["two", "the last one"]
)
async def test_a_connection_with_extra_bytes_or_to_be_closed_is_not_reused(answer: bytes) -> None:
    async with serving(always(answer)) as server:
        assert [await server.answer(), await server.answer()] == [(200, b"ok")] * 2
        assert server.connections == 2


async def test_an_abandoned_request_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        await reader.read()
        closed.set()

    async with serving(script) as server:
        async with server.request() as connection:
            assert await connection.read() == b"ok"
        await closed.wait()
        assert server.pool.take(server.address) is None


async def test_a_large_request_is_sent_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE", 2**16)
    body, read = bytes(range(256)) * 2**14, list[bytes]()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read.append(await read_request(reader))
        writer.write(WHOLE)
        await reader.read()

    async with serving(script) as server:
        assert await server.answer(body) == (200, b"ok")
    assert read == [body]


async def test_a_large_request_may_be_refused_before_it_is_sent_whole() -> None:
    is_read = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE.replace(b"200 OK", b"413 Content Too Large"))
        await is_read.wait()

    async with serving(script) as server:
        assert await server.answer(bytes(2**25)) == (413, b"ok")
        is_read.set()
        assert server.pool.take(server.address) is None, "the rest of the request was not sent"


async def test_a_node_waits_for_a_client_that_does_not_read() -> None:
    size = 2**25
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(bytes(2**16))
            await writer.drain()
            sent += 2**16
        await reader.read()

    async with serving(script) as server, server.request() as connection:
        while not connection._is_paused:
            await asyncio.sleep(0.01)
        assert sent < size
        total = 0
        while data := await connection.read():
            assert len(data) <= wire.BUFFER + SYSTEM_READ
            total += len(data)
        assert total == size
