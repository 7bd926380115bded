"""One sign-in, from the button to the person. Its state is kept in the browser's cookie."""

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
"""Time limit in seconds, from the button to the return from the provider."""
LONGEST_CODE = 4096
_COOKIE = re.compile(r"([a-z]{0,32})-(\d{1,12})-([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Departure:
    """The redirect to the provider, and the cookie for the browser."""

    url: str
    cookie: str


class SignIn:
    """Sign-ins at one provider.

    A cookie is `PAGE-TIME-RANDOM`. State, nonce and PKCE verifier are HMACs of it. If the cookie is changed, they no
    longer match, and a code stolen from another browser is useless.
    """

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.time) -> None:
        self.settings, self.provider = settings, OidcProvider(settings)
        self.tokens = AccessTokens(settings, self.provider, clock)
        self._clock, self._secret = clock, secrets.token_bytes(32)

    def share(self, secret: bytes) -> None:
        """Use a shared secret, so that any server with it can finish a sign-in that another one began."""
        self._secret = secret

    async def begin(self, redirect_uri: str, page: str) -> Departure:
        """Start a sign-in. page: where to go afterwards, lower-case letters or ''. Raises Unavailable."""
        cookie = f"{page}-{self._clock():.0f}-{secrets.token_hex(16)}"
        parts = (self._derive(name, cookie) for name in ("state", "nonce", "verifier"))
        return Departure(await self.provider.authorization_url(redirect_uri, *parts), cookie)

    async def finish(
        self, cookie: str, state: str, code: str, redirect_uri: str, issuer: str | None = None, address: str = ""
    ) -> tuple[Person, str]:
        """Return the person and the page given to `begin`. Raises Unauthorized, Forbidden, Unavailable, QueueFull.

        issuer: `iss`, if the provider sent it with the code (RFC 9207).
        address: of the browser. Addresses take turns.
        """
        match = _COOKIE.fullmatch(cookie)
        if match is None or not 0 <= self._clock() - int(match[2]) + 1 <= SECONDS + 1:
            raise _stale("the sign-in cookie is missing or too old")
        if not hmac.compare_digest(self._derive("state", cookie).encode(), state.encode(errors="replace")):
            raise _stale("the state belongs to another browser or predates a restart")
        if issuer is not None and issuer != self.settings.issuer:
            raise _stale("the answer came from another issuer")
        if not 0 < len(code) <= LONGEST_CODE:
            raise _stale("there is no code")
        nonce, verifier = self._derive("nonce", cookie), self._derive("verifier", cookie)
        person = person_of(self.settings, await self.provider.claims(code, redirect_uri, nonce, verifier, address))
        return person, match[1]

    def _derive(self, name: str, cookie: str) -> str:
        digest = hmac.digest(self._secret, f"{name} {cookie}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _stale(cause: str) -> Unauthorized:
    log.warning("refused a sign-in", extra={"cause": cause})
    return Unauthorized(
        "This sign-in was not started in this browser, or took longer than 10 minutes. Start again.",
        code="sign_in_failed",
    )
