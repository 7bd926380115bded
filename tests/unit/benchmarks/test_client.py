"""The benchmarks' client reads answers, however they are cut into reads."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.load.client import Reply, connect, request_bytes

EVENTS = [
    b'data: {"a":"\\"error\\""}\n\n',
    b'data: {"usage":{"completion_tokens":7,"details":null}}\n\n',
    b"data: [DONE]\n\n",
]
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


async def ask(write: Callable[[asyncio.StreamWriter], Awaitable[None]], timeout: float = 99.0, times: int = 1) -> Reply:
    """Return the last of `times` answers on one connection to a server that answers with `write`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"{}")
                await write(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        connection = await connect(server.sockets[0].getsockname()[1])
        for _ in range(times):
            reply = await connection.ask(request_bytes("/", {}), timeout)
        connection.close()
    return reply


def says(data: bytes, step: int = 1 << 20) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def write(writer: asyncio.StreamWriter) -> None:
        for at in range(0, len(data), step):
            writer.write(data[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)

    return write


@pytest.mark.parametrize("step", [1, 3, 7, 1 << 20])
async def test_a_stream_is_the_same_however_it_is_cut(step: int) -> None:
    reply = await ask(says(SSE + chunked(*EVENTS), step), times=2)
    assert reply.error is None
    assert bytes(reply.body) == b"".join(EVENTS)
    assert (reply.events, reply.tokens, reply.header("x-a")) == (3, 7, "b")
    assert len(reply.gaps) == len(reply.arrivals) - 1
    assert 0 < reply.ttft <= reply.total


async def test_an_answer_with_a_length_is_read() -> None:
    reply = await ask(says(b'HTTP/1.1 201 Created\r\nContent-Length: 8\r\n\r\n{"ok":1}', 5), times=2)
    assert (reply.error, reply.status, bytes(reply.body)) == (None, 201, b'{"ok":1}')
    assert len(reply.arrivals) == 1
    assert reply.tokens == 0


async def test_an_answer_without_a_body_is_read() -> None:
    reply = await ask(says(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"))
    assert (reply.error, reply.status) == (None, 204)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}", "http 429"),
        (SSE + chunked(b'data: {"error":{"message":"gone"}}\n\n', EVENTS[-1]), "error in stream"),
        (SSE + chunked(EVENTS[0]), "stream without its end"),
    ],
)
async def test_errors_and_cut_streams_are_failures(data: bytes, error: str) -> None:
    assert (await ask(says(data))).error == error


async def test_a_connection_that_breaks_is_a_failure() -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE + b"5\r\nda")
        await writer.drain()
        writer.close()

    assert (await ask(write)).error == "connection lost"


async def test_a_server_that_stays_silent_is_a_failure() -> None:
    async def write(_: asyncio.StreamWriter) -> None:
        return

    reply = await ask(write, timeout=0.05)
    assert (reply.error, reply.arrivals) == ("timeout", [])


async def test_a_closed_connection_is_a_failure() -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.close()

    assert (await ask(write, times=2)).error == "no connection"
