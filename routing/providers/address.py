"""Resolve and check addresses, and connect only to those that passed."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Found = tuple[int, str]
"""Family and address."""
LookUp = Callable[[str, int, int], Awaitable[Sequence[Found]]]
"""Addresses of a host: name, port, family. Raises OSError."""

TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""NAT64's prefix for IPv4 addresses in the last 32 bits."""
TRANSLATED_HERE = ipaddress.IPv6Network("64:ff9b:1::/48")
"""The same in one network, which alone knows which bits of it they are (RFC 8215)."""


class AddressRefused(OSError):
    """A name that leads to where this connection must not go."""


@dataclass(frozen=True, slots=True)
class AddressRules:
    """Allowed addresses of connections. Link-local ones never: in clouds they serve the machine's credentials."""

    purpose: str
    """The other side's name in errors: a provider."""
    remedy: str
    """The setting that allows a private address, for errors."""
    private: bool = False
    """Whether all private addresses are allowed."""
    networks: tuple[Network, ...] = ()
    """Private networks that are allowed."""
    is_listed_only: bool = False
    """Whether addresses outside of `networks` are refused, public ones too."""


def fault(address: str, rules: AddressRules) -> str | None:
    """Return why no connection may go to an address; None: it may."""
    target = _embedded_target(ipaddress.ip_address(address.partition("%")[0]))
    if target.is_link_local or target.is_multicast or target.is_unspecified or target in TRANSLATED_HERE:
        return f"{target} is not a valid address for {rules.purpose}"
    if any(target in network for network in rules.networks):
        return None
    if rules.is_listed_only:
        return f"{target} is in no network that is listed; {rules.remedy}"
    is_site_local = isinstance(target, ipaddress.IPv6Address) and target.is_site_local
    if not rules.private and (not target.is_global or is_site_local):
        return f"{target} is private; {rules.remedy}"
    return None


def _embedded_target(address: Address) -> Address:
    """The IPv4 address that an IPv6 one leads to, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in TRANSLATED:
        return embedded
    if int(address) >> 32 == 0 and int(address) > 1:  # "::a.b.c.d"; 0 and 1 are IPv6's own
        return embedded
    return address.ipv4_mapped or address.sixtofour or address


def host_fault(host: str, rules: AddressRules) -> str | None:
    """Return why no connection may go to a host that is an address itself; None: it may, or it is a name.

    aiohttp asks no resolver of what looks like an address, and the machine then reads 127.1 and 2130706433 as one.
    """
    if ":" not in host and not host.replace(".", "").isdigit():
        return None
    try:
        return fault(str(ipaddress.ip_address(host)), rules)
    except ValueError:
        return f"{host[:64]} is no whole address, such as 192.0.2.1"


def look_up(host: str, port: int, family: int) -> Sequence[Found]:
    """`LookUp`, blocking."""
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
    return [(kind, str(where[0])) for kind, _, _, _, where in resolved]


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
