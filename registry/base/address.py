"""Rules for addresses that connections may go to; `session.py` connects."""

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Found = tuple[int, str]
"""Family and address."""
LookUp = Callable[[str, int, int], Awaitable[Sequence[Found]]]
"""Resolves a host, given name, port and family. Raises OSError."""

TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""NAT64's prefix for IPv4 addresses in the last 32 bits."""
TRANSLATED_BEFORE = ipaddress.IPv6Network("::ffff:0:0:0/96")
"""The older prefix of RFC 2765 for the same."""
TRANSLATED_HERE = ipaddress.IPv6Network("64:ff9b:1::/48")
"""The same for use within one network, which decides where the IPv4 address is (RFC 8215)."""

METADATA = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
"""Addresses at which Alibaba, Azure, Oracle, AWS and Google serve a machine's credentials, besides link-local ones."""

NOT_PUBLIC: tuple[Network, ...] = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv6Network("5f00::/16"))
"""IANA's special-purpose networks that Python 3.11 partly takes for public ones."""


class AddressRefused(OSError):
    """A name resolved to an address that is not allowed for this connection."""


@dataclass(frozen=True, slots=True)
class AddressRules:
    """Allowed addresses. Link-local ones and METADATA never are: clouds serve the machine's credentials there."""

    purpose: str
    """Description of the other side for errors, such as 'a provider'."""
    remedy: str
    """The setting that allows a private address, for errors."""
    private: bool = False
    """Whether all private addresses are allowed."""
    networks: tuple[Network, ...] = ()
    """Private networks that are allowed."""
    is_listed_only: bool = False
    """Whether all addresses outside `networks` are refused, including public ones."""


def fault(address: str, rules: AddressRules) -> str | None:
    """Return why an address is not allowed, or None if it is."""
    target = _embedded_target(ipaddress.ip_address(address.partition("%")[0]))
    is_never = target.is_link_local or target.is_multicast or target.is_unspecified or target in TRANSLATED_HERE
    if is_never or target in METADATA:
        return f"{target} is not a valid address for {rules.purpose}"
    if any(target in network for network in rules.networks):
        return None
    if rules.is_listed_only:
        return f"{target} is in none of the listed networks; {rules.remedy}"
    is_special = isinstance(target, ipaddress.IPv6Address) and target.is_site_local
    is_special = is_special or any(target in network for network in NOT_PUBLIC)
    if not rules.private and (not target.is_global or is_special):
        return f"{target} is private; {rules.remedy}"
    return None


def _embedded_target(address: Address) -> Address:
    """Return the IPv4 address embedded in an IPv6 address, or else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in TRANSLATED or address in TRANSLATED_BEFORE:
        return embedded
    if int(address) >> 32 == 0 and int(address) > 1:  # "::a.b.c.d"; 0 and 1 are IPv6's own
        return embedded
    return address.ipv4_mapped or address.sixtofour or address


def host_fault(host: str, rules: AddressRules) -> str | None:
    """Return why a host that is an address is not allowed; None if it is allowed, or is a name.

    aiohttp does not call the resolver for hosts that look like an address, and the system accepts 127.1 and 2130706433.
    """
    if ":" not in host and not host.replace(".", "").isdigit():
        return None
    try:
        return fault(str(ipaddress.ip_address(host)), rules)
    except ValueError:
        return f"{host[:64]} is not a complete address, such as 192.0.2.1"


def look_up(host: str, port: int, family: int) -> Sequence[Found]:
    """Resolve a host, as `LookUp`, but blocking."""
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
    return [(kind, str(where[0])) for kind, _, _, _, where in resolved]
