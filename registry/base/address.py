"""Which addresses connections may go to; `session.py` connects."""

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Found = tuple[int, str]
"""Family and address."""
LookUp = Callable[[str, int, int], Awaitable[Sequence[Found]]]
"""Addresses of a host: name, port, family. Raises OSError."""

TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""NAT64's prefix for IPv4 addresses in the last 32 bits."""
TRANSLATED_BEFORE = ipaddress.IPv6Network("::ffff:0:0:0/96")
"""The same of RFC 2765, before there was that one."""
TRANSLATED_HERE = ipaddress.IPv6Network("64:ff9b:1::/48")
"""The same in one network, which alone knows which bits of it they are (RFC 8215)."""

NOT_PUBLIC: tuple[Network, ...] = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv6Network("5f00::/16"))
"""Networks of special purposes by IANA's registries, which Python 3.11 takes for public ones in part."""


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
    is_special = isinstance(target, ipaddress.IPv6Address) and target.is_site_local
    is_special = is_special or any(target in network for network in NOT_PUBLIC)
    if not rules.private and (not target.is_global or is_special):
        return f"{target} is private; {rules.remedy}"
    return None


def _embedded_target(address: Address) -> Address:
    """The IPv4 address that an IPv6 one leads to, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in TRANSLATED or address in TRANSLATED_BEFORE:
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
        return f"{host[:64]} is not a complete address, such as 192.0.2.1"


def look_up(host: str, port: int, family: int) -> Sequence[Found]:
    """`LookUp`, blocking."""
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
    return [(kind, str(where[0])) for kind, _, _, _, where in resolved]
