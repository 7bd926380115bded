"""Connections to other servers: what they may send before there is an answer."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest
import uvloop

from registry.base.address import AddressRules
from registry.base.session import MOST_INTERIM, Resolver, guarded_session

INTERIM, ANSWER = b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Run = Callable[[Coroutine[Any, Any, str]], str]
both = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


async def _answers(interim: int, calls: int = 1) -> str:
    """What calls of a server read that sends so many informational answers before each answer."""

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
def test_some_informational_answers_are_skipped(run: Run) -> None:
    assert run(_answers(MOST_INTERIM, 2)) == "okok"


@both
def test_many_informational_answers_break_the_connection(run: Run) -> None:
    """aiohttp reads any number, and everything else of this process waits: 10 s for 19 MiB of them."""
    with pytest.raises(aiohttp.ClientOSError, match="too many informational responses"):
        run(_answers(MOST_INTERIM + 1))
