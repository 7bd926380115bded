"""Connections to other servers, and informational responses before an answer."""

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
