"""Where the download of an adapter's address may go: to its own host, and by redirects to public ones over https.

| host                                                  | connected                                     |
|-------------------------------------------------------|-----------------------------------------------|
| the address's own, public or private                  | yes: the key has the scope `paths`            |
| of a redirect, public, by https                       | yes: stores send readers to other hosts       |
| of a redirect, private; by http where it was https    | no                                            |
| link-local: a cloud's credentials for the machine     | never                                         |
"""

from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from registry.base.address import AddressRefused, AddressRules, host_fault
from registry.base.session import Resolver

OWN = AddressRules("an adapter's source", "", private=True)
REDIRECTED = AddressRules("a redirect of an adapter's source", "name the final address instead")


class _SourceResolver(AbstractResolver):
    """Refuses names by the rules for their host. own: the source's."""

    def __init__(self, own: str) -> None:
        self._own = own

    def rules(self, host: str) -> AddressRules:
        return OWN if host == self._own else REDIRECTED

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        return await Resolver(self.rules(host)).resolve(host, port, family)

    async def close(self) -> None:
        pass


class _SourceConnector(aiohttp.TCPConnector):
    """Looks at each request, those after redirects too. source: the address that a client named."""

    def __init__(self, source: URL) -> None:
        self._source, self._rules = source, _SourceResolver(source.host or "")
        super().__init__(resolver=self._rules, use_dns_cache=False)

    async def connect(self, req: Any, *args: Any, **options: Any) -> Any:
        """Raises AddressRefused."""
        host = req.url.host or ""
        if req.url.scheme != self._source.scheme and req.url.scheme != "https":
            raise AddressRefused(f"a redirect leads to {req.url.scheme}; name the final address instead")
        if (wrong := host_fault(host, self._rules.rules(host))) is not None:
            raise AddressRefused(wrong)
        return await super().connect(req, *args, **options)


class SourceClient:
    """A factory of fsspec's HTTP client for one address."""

    def __init__(self, url: str) -> None:
        self._url = URL(url)

    async def __call__(self, **options: Any) -> aiohttp.ClientSession:
        """options: as fsspec passes them on to aiohttp."""
        return aiohttp.ClientSession(
            connector=_SourceConnector(self._url), cookie_jar=aiohttp.DummyCookieJar(), **options
        )


def refusal_of(error: BaseException | None) -> AddressRefused | None:
    """The refused address behind an error of aiohttp or fsspec; None: it has another cause."""
    while error is not None and not isinstance(error, AddressRefused):
        error = error.__cause__ or error.__context__
    return error
