"""One sign-in, from the button to the person. Its state is in the browser's cookie."""

import base64
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from registry.errors import Unauthorized
from tenants.caller import Person
from tenants.sign_in.provider import OidcProvider
from tenants.sign_in.settings import OidcSettings, person_of
from tenants.sign_in.tokens import AccessTokens

log = logging.getLogger("roundhouse.sign_in")
SECONDS = 600
"""Seconds from the button to the way back."""
LONGEST_CODE = 4096
_COOKIE = re.compile(r"([a-z]{0,32})-(\d{1,12})-([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Departure:
    """The redirect to the provider, with the cookie for the browser."""

    url: str
    cookie: str


class SignIn:
    """Sign-ins at one provider.

    A cookie is `PAGE-TIME-RANDOM`. State, nonce and PKCE verifier are HMACs of it, so that a changed cookie has others,
    and a code that was stolen from another browser has none.
    """

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.time) -> None:
        self.settings, self.provider = settings, OidcProvider(settings)
        self.tokens = AccessTokens(settings, self.provider, clock)
        self._clock, self._secret = clock, secrets.token_bytes(32)

    def share(self, secret: bytes) -> None:
        """All servers with this secret finish what one of them began."""
        self._secret = secret

    async def begin(self, redirect_uri: str, page: str) -> Departure:
        """page: where the person goes afterwards, a word of small letters or ''. Raises Unavailable, QueueFull."""
        cookie = f"{page}-{self._clock():.0f}-{secrets.token_hex(16)}"
        parts = (self._derive(name, cookie) for name in ("state", "nonce", "verifier"))
        return Departure(await self.provider.authorization_url(redirect_uri, *parts), cookie)

    async def finish(
        self, cookie: str, state: str, code: str, redirect_uri: str, issuer: str | None = None
    ) -> tuple[Person, str]:
        """The person, and the page of `begin`. Raises Unauthorized, Forbidden, Unavailable, QueueFull.

        issuer: what the provider sent as `iss` beside the code (RFC 9207).
        """
        found = _COOKIE.fullmatch(cookie)
        if found is None or not 0 <= self._clock() - int(found[2]) + 1 <= SECONDS + 1:
            raise _stale("there is no cookie of a sign-in, or it is too old")
        if not hmac.compare_digest(self._derive("state", cookie).encode(), state.encode(errors="replace")):
            raise _stale("the state is another browser's, or of before a restart")
        if issuer is not None and issuer != self.settings.issuer:
            raise _stale("the answer came from another issuer")
        if not 0 < len(code) <= LONGEST_CODE:
            raise _stale("there is no code")
        nonce, verifier = self._derive("nonce", cookie), self._derive("verifier", cookie)
        person = person_of(self.settings, await self.provider.claims(code, redirect_uri, nonce, verifier))
        return person, found[1]

    def _derive(self, name: str, cookie: str) -> str:
        digest = hmac.digest(self._secret, f"{name} {cookie}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _stale(cause: str) -> Unauthorized:
    log.warning("a sign-in was refused", extra={"cause": cause})
    return Unauthorized(
        "This sign-in is not one of this browser, or it took longer than 10 minutes. Begin again.",
        code="sign_in_failed",
    )
