"""A client that connects only to addresses that passed. Apart, as aiohttp is imported for the first connection."""

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
    """Refuses a name when any of its addresses is refused."""

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
"""Informational answers (1xx) before an answer. aiohttp reads any number of them, and event loops wait meanwhile."""


class _BoundedConnection(ResponseHandler):
    """Breaks where too much comes: at the read after so many bytes. A socket that does is passed over by uvloop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int | None) -> None:
        super().__init__(loop)
        self._most, self._size, self._interim, self._is_broken = most, 0, 0, False

    def data_received(self, data: bytes) -> None:
        if self._most is not None and self._size >= self._most:
            self._break("too many bytes came")
        self._size += len(data)
        if not self._is_broken:
            super().data_received(data)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        self._interim = self._interim + 1 if data[0].code < 200 else 0
        if self._interim > MOST_INTERIM:
            self._break("too many informational answers came")
        if not self._is_broken:
            super().feed_data(data, size)

    def _break(self, why: str) -> None:
        if not self._is_broken:
            self._is_broken = True
            self.set_exception(aiohttp.ClientOSError(errno.ECONNABORTED, why))
            if self.transport is not None:
                self.transport.abort()


class _BoundedConnector(aiohttp.TCPConnector):
    """most: bytes that may come over one connection; None: any number."""

    def __init__(self, most: int | None, **options: Any) -> None:
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
    """A client without cookies, proxies and decompression, whose names the resolver checks.

    A host that is an address itself is not resolved: check it by `host_fault`. Its calls must not follow
    redirects.

    A connection breaks at too many informational answers.

    buffer: bytes of an answer that may wait to be read. most: bytes that may come over one connection before it breaks;
        each call has its own connection then. None: the caller bounds what it reads.
    """
    alone = {"use_dns_cache": False, "force_close": True} if most is not None else {"keepalive_timeout": 30}
    connector = _BoundedConnector(most, limit=0, resolver=resolver, **alone)  # the caller bounds its calls
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
