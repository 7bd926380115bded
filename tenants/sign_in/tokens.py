"""Access tokens of the provider, which programs and the command line send instead of a key.

| bearer token                                          | result                                                  |
|-------------------------------------------------------|---------------------------------------------------------|
| not a JWT, or from another issuer                     | looked up as a key                                      |
| from this issuer, but the file names no `audience`    | 401 `access_tokens_off`                                 |
| wrong signature, audience or other claim              | 401 `invalid_access_token`                              |
| expired                                               | 401 `access_token_expired`                              |
| none of its groups is in the file                     | 403 `no_group`                                          |
| otherwise                                             | the person with these groups, as if signed in           |

A verified token is remembered by its SHA-256 until it expires, for at most 12 hours, so that most requests need no
call to the provider.
"""

import base64
import hashlib
import time
from collections.abc import Callable

import msgspec
from cachetools import TLRUCache

from registry.base.json import NOT_JSON
from registry.errors import Unauthorized
from tenants.caller import Person
from tenants.sign_in.provider import LEEWAY, OidcProvider, expired_error
from tenants.sign_in.settings import OidcSettings, person_of

LONGEST = 16 * 1024
"""Longest token in characters."""
SECONDS = 12 * 3600
"""Longest time before a token is verified again, because the provider may have withdrawn its signing key."""
MOST = 10_000
"""Most tokens that are remembered; the least recently used one is dropped first."""


class _Issued(msgspec.Struct):
    iss: str = ""


_ISSUED = msgspec.json.Decoder(_Issued)


class AccessTokens:
    """clock: returns seconds since the epoch."""

    def __init__(self, settings: OidcSettings, provider: OidcProvider, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._provider, self._clock = settings, provider, clock
        self._people: TLRUCache[bytes, tuple[Person, float]] = TLRUCache(
            MOST, lambda _digest, entry, _now: entry[1], timer=clock
        )

    def is_issued(self, text: str) -> bool:
        """Whether the token names the provider as its issuer. Nothing else is checked."""
        parts = text.split(".") if len(text) <= LONGEST else ()
        if len(parts) != 3:
            return False
        try:
            payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
            return _ISSUED.decode(payload).iss == self._settings.issuer
        except (*NOT_JSON, ValueError):
            return False

    async def check(self, token: str) -> None:
        """Verify a token, so that `person` accepts it. Raises Unauthorized, Forbidden, Unavailable."""
        if (digest := _digest(token)) in self._people:
            return
        audience = self._settings.audience
        if audience is None:
            raise Unauthorized(
                "This server does not accept access tokens. Send a key, or ask the server's operator to name an "
                "audience in the file of --oidc.",
                code="access_tokens_off",
            )
        claims = await self._provider.access_claims(token, audience, self._clock())
        expires = min(float(str(claims["exp"])) + LEEWAY, self._clock() + SECONDS)
        self._people[digest] = person_of(self._settings, claims), expires

    def person(self, token: str) -> Person:
        """Return the person of a verified token. Raises Unauthorized if it has expired."""
        if (entry := self._people.get(_digest(token))) is None:
            raise expired_error()
        return entry[0]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
