"""Limit which hosts a download from an adapter's address may connect to.

| host                                              | allowed                                     |
|---------------------------------------------------|---------------------------------------------|
| the address's own, public or private              | yes: the key has the scope `paths`          |
| a redirect's, public, over https                  | yes: stores redirect readers to other hosts |
| a redirect's, private, or downgraded to http      | no                                          |
| link-local, or one where clouds serve credentials | never                                       |
"""

from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from registry.base.address import AddressRefused, AddressRules, host_fault
from registry.base.session import BoundedConnector, Resolver

OWN = AddressRules("an adapter's source", "", private=True)
REDIRECTED = AddressRules("a redirect of an adapter's source", "name the final address instead")


class _SourceResolver(AbstractResolver):
    """Applies the rules for each host. own: the source's host."""

    def __init__(self, own: str) -> None:
        self._own = own

    def rules(self, host: str) -> AddressRules:
        return OWN if host == self._own else REDIRECTED

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        return await Resolver(self.rules(host)).resolve(host, port, family)

    async def close(self) -> None:
        pass


class _SourceConnector(BoundedConnector):
    """Checks each request, also after redirects. source: the client's address."""

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
        """Return a session. options: what fsspec passes to aiohttp."""
        return aiohttp.ClientSession(
            connector=_SourceConnector(self._url), cookie_jar=aiohttp.DummyCookieJar(), **options
        )


def refusal_of(error: BaseException | None) -> AddressRefused | None:
    """Return the refusal behind an error of aiohttp or fsspec, or None."""
    while error is not None and not isinstance(error, AddressRefused):
        error = error.__cause__ or error.__context__
    return error
