"""An HTTP client that connects only to allowed addresses.

Separate from `address.py`, because aiohttp is imported only for the first connection.
"""

import asyncio
import errno
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import aiohttp
from aiohttp import StreamReader
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage

from registry.base.address import AddressRefused, AddressRules, Found, LookUp, fault


async def _look_up(host: str, port: int, family: int) -> Sequence[Found]:
    loop = asyncio.get_running_loop()
    resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
    return [(kind, str(where[0])) for kind, _, _, _, where in resolved]


class Resolver(AbstractResolver):
    """Refuses a name if any of its addresses is refused."""

    def __init__(self, rules: AddressRules, look_up: LookUp = _look_up) -> None:
        self._rules, self._look_up = rules, look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = []
        for kind, address in await self._look_up(host, port, family):
            if (wrong := fault(address, self._rules)) is not None:
                raise AddressRefused(wrong)
            result = ResolveResult(
                hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST
            )
            results.append(result)
        return results

    async def close(self) -> None:
        pass


MOST_INTERIM = 100
"""Most informational responses (1xx) before an answer. aiohttp would read any number, and block the event loop."""


class _BoundedConnection(ResponseHandler):
    """Fails after too many bytes or informational responses.

    A bounded socket would not do, because uvloop bypasses it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int | None) -> None:
        super().__init__(loop)
        self._most, self._size, self._interim, self._is_broken = most, 0, 0, False

    def data_received(self, data: bytes) -> None:
        if self._most is not None and self._size >= self._most:
            self._break("too many bytes received")
        self._size += len(data)
        if not self._is_broken:
            super().data_received(data)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        self._interim = self._interim + 1 if data[0].code < 200 else 0
        if self._interim > MOST_INTERIM:
            self._break("too many informational responses received")
        if not self._is_broken:
            super().feed_data(data, size)

    def _break(self, why: str) -> None:
        if not self._is_broken:
            self._is_broken = True
            self.set_exception(aiohttp.ClientOSError(errno.ECONNABORTED, why))
            if self.transport is not None:
                self.transport.abort()


class BoundedConnector(aiohttp.TCPConnector):
    """Makes connections that fail on too many informational responses.

    most: bytes that one may receive; None for any number.
    """

    def __init__(self, most: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(_BoundedConnection, self._loop, most)  # type: ignore[assignment]


def guarded_session(
    resolver: Resolver,
    buffer: int,
    timeout: aiohttp.ClientTimeout,
    traces: Sequence[aiohttp.TraceConfig] = (),
    *,
    most: int | None = None,
) -> aiohttp.ClientSession:
    """Return a client without cookies, proxies and decompression, whose resolver checks addresses.

    A host that is an address is not resolved, so check it with `host_fault`. Calls must not follow redirects.

    A connection fails on too many informational responses.

    buffer: bytes of an answer that may be buffered. most: bytes that one connection may receive before it fails; each
        call then has its own connection. None: the caller bounds what it reads.
    """
    alone = {"use_dns_cache": False, "force_close": True} if most is not None else {"keepalive_timeout": 30}
    connector = BoundedConnector(most, limit=0, resolver=resolver, **alone)  # the caller bounds its calls
    return aiohttp.ClientSession(
        connector=connector,
        trace_configs=list(traces),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=buffer,
        trust_env=False,
        timeout=timeout,
        headers={"accept-encoding": "identity", "user-agent": "roundhouse"},
    )
