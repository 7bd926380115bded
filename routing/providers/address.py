"""Where a connection may go: a host is looked up once, and what was checked is what is connected to."""

import asyncio
import ipaddress
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""What NAT64 makes IPv4 of: the last 32 bits."""
TRANSLATED_HERE = ipaddress.IPv6Network("64:ff9b:1::/48")
"""The same in one network, which alone knows which bits of it they are (RFC 8215)."""


class AddressRefused(OSError):
    """A name that leads to where this provider must not be."""


def fault(address: str, private: bool) -> str | None:
    """Return why no connection may go to an address; None: it may.

    `private` is the recipe's `private_addresses`. Link-local addresses are never allowed: in clouds they serve the
    machine's own credentials.
    """
    target = _embedded_target(ipaddress.ip_address(address.partition("%")[0]))
    if target.is_link_local or target.is_multicast or target.is_unspecified or target in TRANSLATED_HERE:
        return f"{target} is not a valid address for a provider"
    is_site_local = isinstance(target, ipaddress.IPv6Address) and target.is_site_local
    if not private and (not target.is_global or is_site_local):
        return f"{target} is private; `private_addresses: true` in the recipe allows it"
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


def literal(host: str) -> str | None:
    """The host, if it is an address itself."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


class Resolver(AbstractResolver):
    """Refuses a name when any of its addresses is refused."""

    def __init__(self, private: bool) -> None:
        self._private = private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        results = []
        for kind, _, protocol, _, where in resolved:
            address = str(where[0])
            if (wrong := fault(address, self._private)) is not None:
                raise AddressRefused(wrong)
            results.append(
                ResolveResult(
                    hostname=host, host=address, port=port, family=kind, proto=protocol, flags=socket.AI_NUMERICHOST
                )
            )
        return results

    async def close(self) -> None:
        pass
