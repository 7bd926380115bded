"""Connections to other servers, and informational responses before an answer."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest
import uvloop

from registry.base.address import AddressRules
from registry.base.session import MOST_INTERIM, Resolver, guarded_session
from tests.eventually import PATIENCE

INTERIM, ANSWER = b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Run = Callable[[Coroutine[Any, Any, str]], str]
both = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


async def _answers(interim: int, calls: int = 1) -> str:
    """Return the answers of a server that sends `interim` informational responses before each."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(INTERIM * interim + ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    rules, timeout = AddressRules("a test", "", private=True), aiohttp.ClientTimeout(total=60)
    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        guarded_session(Resolver(rules), 2**16, timeout) as session,
    ):
        read = ""
        for _ in range(calls):
            async with session.get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as response:
                read += await response.text()
        return read


@both
def test_some_informational_responses_are_skipped(run: Run) -> None:
    assert run(_answers(MOST_INTERIM, 2)) == "okok"


@both
def test_many_informational_responses_break_the_connection(run: Run) -> None:
    """aiohttp alone would read any number, and block the process for 10 s for 19 MiB of them."""
    with pytest.raises(aiohttp.ClientOSError, match="too many informational responses"):
        run(_answers(MOST_INTERIM + 1))


@both
def test_a_connection_is_closed_after_too_many_unread_bytes(run: Run) -> None:
    async def receive() -> str:
        cut = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 20000000\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                for _ in range(200):
                    writer.write(bytes(100_000))
                    await writer.drain()
                await reader.read()
            cut.set()
            writer.close()

        rules, timeout = AddressRules("a test", "", private=True), aiohttp.ClientTimeout(total=PATIENCE)
        async with (
            await asyncio.start_server(serve, "127.0.0.1", 0) as server,
            guarded_session(Resolver(rules), 2**30, timeout, most=1000) as session,
            session.get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as response,
            asyncio.timeout(PATIENCE),
        ):
            await cut.wait()
            with pytest.raises(aiohttp.ClientError):
                await response.read()
            return "cut"

    assert run(receive()) == "cut"


async def test_each_call_whose_bytes_are_bounded_has_a_connection_of_its_own() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 600\r\n\r\n" + bytes(600))
        writer.close()

    rules, timeout = AddressRules("a test", "", private=True), aiohttp.ClientTimeout(total=PATIENCE)
    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        guarded_session(Resolver(rules), 2**16, timeout, most=1000) as session,
    ):
        for _ in range(3):
            async with session.get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as response:
                assert len(await response.read()) == 600
    assert connections == 3
