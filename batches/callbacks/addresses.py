"""Rules for URLs that may be called: https and public, or in a network that the operator allows.

| URL                                                             | at creation | when it is called             |
|-----------------------------------------------------------------|-------------|-------------------------------|
| https, all addresses public or in a listed network              | accepted    | called                        |
| http, all addresses in a listed network                         | accepted    | called                        |
| any other scheme; other http; with a user or fragment           | refused     | -                             |
| an address is private and not listed, or never allowed          | refused     | not called: the attempt fails |
| a name that cannot be resolved                                  | refused     | not called: the attempt fails |

Names are resolved in separate threads, so that a slow name server delays nothing else.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from yarl import URL

from batches.callbacks.records import MOST_URL
from registry.base.address import AddressRules, Found, LookUp, host_fault, look_up
from registry.base.threads import Threads
from registry.errors import BadRequest

if TYPE_CHECKING:
    from registry.base.session import Resolver

CODE = "callback_refused"
REMEDY = "the server's operator can allow its network with --callback-networks"
LOOK_UP_SECONDS = 5.0
_TEAM: ContextVar[str] = ContextVar("roundhouse_callback_team", default="")
"""The team whose URL is resolved. A context variable, because aiohttp calls the resolver."""
FORM = "write an https URL such as https://example.com/batches, without user or fragment"


class CallbackAddresses:
    """networks: private networks that may be called, even without TLS, such as 10.1.0.0/16."""

    def __init__(self, networks: Sequence[str] = (), look_up: LookUp | None = None) -> None:
        self._rules = AddressRules(
            "a callback", REMEDY, networks=tuple(ipaddress.ip_network(network) for network in networks)
        )
        self._threads = Threads(
            "resolver of callbacks", count=4, waiting=64, each=2
        )  # a team may have a slow name server
        self._look_up_by = look_up or self._look_up

    def rules(self, scheme: str) -> AddressRules:
        return self._rules if scheme == "https" else replace(self._rules, is_listed_only=True)

    def resolver(self, scheme: str) -> "Resolver":
        from registry.base.session import Resolver

        return Resolver(self.rules(scheme), self._look_up_by)

    async def check(self, url: str, param: str, team: str = "") -> str:
        """Check that a team's URL may be called now, and return it. Raises BadRequest, QueueFull."""
        host, scheme = _host(url, param)
        if scheme == "http" and not self._rules.networks:
            raise _refused(param, "http is not encrypted: write https", REMEDY)
        if (wrong := host_fault(host, self.rules(scheme))) is not None:
            raise _refused(param, wrong)
        try:
            with resolving_for(team):
                async with asyncio.timeout(LOOK_UP_SECONDS):
                    await self.resolver(scheme).resolve(host, family=socket.AF_UNSPEC)
        except TimeoutError:
            raise _refused(param, f"its host was not resolved within {LOOK_UP_SECONDS:g} s: try again") from None
        except socket.gaierror:
            raise _refused(param, "its host cannot be resolved: correct its name") from None
        except (OSError, UnicodeError) as error:
            raise _refused(param, str(error)) from None
        return url

    async def _look_up(self, host: str, port: int, family: int) -> Sequence[Found]:
        return await self._threads.run_for(_TEAM.get(), look_up, host, port, family)


@contextmanager
def resolving_for(team: str) -> Iterator[None]:
    """Resolve names at the turn of this team."""
    token = _TEAM.set(team)
    try:
        yield
    finally:
        _TEAM.reset(token)


def _host(url: str, param: str) -> tuple[str, str]:
    """Return host and scheme of a URL as the HTTP client parses it. Raises BadRequest."""
    if len(url) > MOST_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise _refused(param, FORM)
    try:
        parsed = URL(url)
        is_plain = parsed.scheme in ("https", "http") and parsed.host and parsed.port and "@" not in parsed.authority
    except ValueError:
        raise _refused(param, FORM) from None
    if not is_plain or parsed.fragment:
        raise _refused(param, FORM)
    return parsed.host or "", parsed.scheme


def _refused(param: str, *reasons: str) -> BadRequest:
    return BadRequest(f"'{param}' is refused: {'; '.join(reasons)}.", param=param, code=CODE)
