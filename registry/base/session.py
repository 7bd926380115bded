"""A client that connects only to addresses that passed. Apart, as aiohttp is imported for the first connection."""

import asyncio
import socket
from collections.abc import Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

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


class _BoundedSocket(socket.socket):
    """Breaks at the read after so many bytes: aiohttp reads any number of informational answers (1xx)."""

    def __init__(self, most: int, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self._left = most

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        self._check()
        data = super().recv(size, flags)
        self._left -= len(data)
        return data

    def recv_into(self, buffer: bytearray | memoryview, size: int = 0, flags: int = 0) -> int:  # type: ignore[override]
        self._check()
        length = super().recv_into(buffer, size, flags)
        self._left -= length
        return length

    def _check(self) -> None:
        if self._left <= 0:
            raise ConnectionAbortedError("too many bytes came")


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

    buffer: bytes of an answer that may wait to be read. most: bytes that may come over one connection before it breaks;
        each call has its own connection then. None: the caller bounds what it reads.
    """
    connector = (
        aiohttp.TCPConnector(limit=0, resolver=resolver, keepalive_timeout=30)  # the caller bounds its calls
        if most is None
        else aiohttp.TCPConnector(
            limit=0,
            resolver=resolver,
            use_dns_cache=False,
            force_close=True,
            socket_factory=lambda info: _BoundedSocket(most, info[0], info[1], info[2]),
        )
    )
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
