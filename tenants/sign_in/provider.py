"""An OpenID Connect provider: its addresses, keys and user info."""

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx2 as httpx
import msgspec
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import ClaimError, ExpiredTokenError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from registry.base.counting import count_down
from registry.base.json import NOT_JSON
from registry.base.turns import FairTurns, NoTurn
from registry.errors import QueueFull, Unauthorized, Unavailable
from tenants.sign_in.settings import OidcSettings, is_safe, value_of

log = logging.getLogger("roundhouse.sign_in")
DISCOVERY = "/.well-known/openid-configuration"
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
"""Public-key signatures. `none` and HMAC with the client's secret are never accepted."""
SECONDS = 15.0
"""Time limit for all calls of one step."""
LEEWAY = 60
"""Seconds by which the provider's clock may differ from ours."""
FRESH = 3600.0
"""Seconds after which endpoints and keys are fetched again."""
KEYS_AGAIN = 30.0
"""Least seconds between two fetches because a token names an unknown key."""
LARGEST = 1 << 20
"""Largest answer in bytes."""
MOST_STEPS = 32
"""Most codes that are exchanged at a time, and most of one address that are exchanged or wait for their turn.

Anybody can send made-up codes, so addresses take turns.
"""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses in a provider's discovery document."""

    authorization: str
    token: str
    keys: str
    user: str | None
    end_session: str | None


class OidcProvider:
    """Calls an OpenID Connect provider. Raises Unavailable if it fails, Unauthorized if its answer is wrong."""

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._endpoints, self._keys = _SharedFetch(self._fetch_endpoints, clock), _SharedFetch(self._fetch_keys, clock)
        self._tls: ssl.SSLContext | None = None
        self._turns, self._steps = FairTurns(MOST_STEPS), Counter[str]()

    async def authorization_url(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Return the URL of the provider's sign-in page."""
        endpoints = await self._endpoints.get()
        async with self._client(redirect_uri) as client:
            url, _ = client.create_authorization_url(
                endpoints.authorization, state=state, nonce=nonce, code_verifier=verifier
            )
            return str(url)

    async def claims(
        self, code: str, redirect_uri: str, nonce: str, verifier: str, address: str = ""
    ) -> Mapping[str, object]:
        """Exchange a code for the person's verified claims. address: of the client. Raises QueueFull.

        If the ID token has no groups, they come from the userinfo endpoint.
        """
        async with self._step(redirect_uri, address) as client:
            endpoints = await self._endpoints.get()
            token = await client.fetch_token(
                endpoints.token, grant_type="authorization_code", code=code, code_verifier=verifier
            )
            claims = await self._verified(token, nonce)
            if value_of(claims, self._settings.groups_claim) is None and endpoints.user is not None:
                more = _object(await client.get(endpoints.user))
                if more.get("sub") != claims["sub"]:
                    raise _refused("the userinfo endpoint described another person")
                name = self._settings.groups_claim
                return {**more, **claims, name: value_of(more, name)}  # what the token says counts for the rest
            return claims

    async def access_claims(self, token: str, audience: str, now: float) -> Mapping[str, object]:
        """Return the verified claims of an access token for this audience. now: seconds since the epoch."""
        needed = jwt.JWTClaimsRegistry(
            now=int(now),
            leeway=LEEWAY,
            iss={"essential": True, "value": self._settings.issuer},
            aud={"essential": True, "value": audience},
            sub={"essential": True},
            exp={"essential": True},
        )
        try:
            decoded = await self._decoded(token)
            needed.validate(decoded.claims)
        except ExpiredTokenError:
            raise expired_error() from None
        except ClaimError as error:
            raise _token_error(
                f"Its claim '{error.claim}' is missing or wrong: get one for the audience '{audience}'."
            ) from None
        except (JoseError, ValueError, TypeError):
            raise _token_error("Its signature is invalid: get a new one from the provider.") from None
        return decoded.claims

    async def sign_out_url(self, back_to: str) -> str | None:
        """Return the page that ends the browser's session with the provider. None if it has none."""
        if not self._settings.ends_session:
            return None
        address = (await self._endpoints.get()).end_session
        if address is None:
            return None
        query = {"client_id": self._settings.client_id, "post_logout_redirect_uri": back_to}
        return str(httpx.URL(address).copy_merge_params(query))

    # --- parts ------------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def _step(self, redirect_uri: str, address: str) -> AsyncIterator[AsyncOAuth2Client]:
        """Yield a client at the turn of the browser's address. Raises QueueFull, and as `_client`."""
        if self._steps[address] >= MOST_STEPS:
            raise _too_many()
        self._steps[address] += 1
        try:
            async with self._turns.take(address, SECONDS), self._client(redirect_uri) as client:
                yield client
        except NoTurn:
            raise _too_many() from None
        finally:
            count_down(self._steps, address)

    @asynccontextmanager
    async def _client(self, redirect_uri: str) -> AsyncIterator[AsyncOAuth2Client]:
        """Yield a client for the calls of one step. Raises Unavailable, Unauthorized."""
        settings = self._settings
        secret = settings.client_secret()
        if self._tls is None:  # takes 0.1 s, for which everything else would wait
            self._tls = await asyncio.to_thread(httpx.create_ssl_context)
        try:
            async with (
                asyncio.timeout(SECONDS),
                AsyncOAuth2Client(
                    settings.client_id,
                    secret,
                    redirect_uri=redirect_uri,
                    scope=" ".join(settings.scopes),
                    code_challenge_method="S256",
                    token_endpoint_auth_method="none" if secret is None else "client_secret_basic",
                    event_hooks={"response": [_bound]},
                    headers={"Accept-Encoding": "identity"},
                    timeout=SECONDS,
                    verify=self._tls,
                ) as client,
            ):
                yield client
        except AuthlibBaseError as error:
            raise _refused(f"the provider refused the code: {error.error}") from None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            log.error("the sign-in provider does not answer", extra={"cause": type(error).__name__})
            raise self._silent() from None

    async def _fetch_endpoints(self) -> Endpoints:
        issuer = self._settings.issuer
        document = await self._fetch(f"{issuer.rstrip('/')}{DISCOVERY}")
        if document.get("issuer") != issuer:
            log.error("the sign-in provider's issuer differs from the --oidc file", extra={"expected": issuer})
            raise self._silent("Its issuer differs from the one in the --oidc file: copy it exactly.")
        texts = {name: value for name, value in document.items() if isinstance(value, str)}
        needed = [texts.get(name, "") for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
        more = [texts.get(name) for name in ("userinfo_endpoint", "end_session_endpoint")]
        if not all(map(is_safe, needed)) or not all(address is None or is_safe(address) for address in more):
            log.error("the sign-in provider's discovery document lacks https addresses")
            raise self._silent("Its discovery document lacks an address, or has one without https.")
        self._keys.forget()
        return Endpoints(*needed, *more)

    async def _fetch_keys(self) -> KeySet:
        try:
            answer = await self._fetch((await self._endpoints.get()).keys)
            return KeySet.import_key_set(answer)  # type: ignore[arg-type]
        except (JoseError, ValueError, TypeError, KeyError):
            log.error("the sign-in provider's keys cannot be read")
            raise self._silent("Its keys cannot be read.") from None

    async def _fetch(self, url: str) -> dict[str, object]:
        async with self._client("") as client:
            return _object(await client.request("GET", url, withhold_token=True))

    async def _decoded(self, token: str) -> jwt.Token:
        """Return a token with a valid signature. An unknown key may be new: then the keys are fetched again."""
        try:
            return jwt.decode(token, await self._keys.get(), algorithms=ALGORITHMS)
        except InvalidKeyIdError:
            return jwt.decode(token, await self._keys.get(KEYS_AGAIN), algorithms=ALGORITHMS)

    async def _verified(self, token: Mapping[str, Any], nonce: str) -> Mapping[str, object]:
        text, settings = token.get("id_token"), self._settings
        if not isinstance(text, str):
            raise _refused("the provider sent no ID token")
        try:
            decoded = await self._decoded(text)
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                {
                    "iss": {"essential": True, "value": settings.issuer},
                    "aud": {"essential": True, "value": settings.client_id},
                },
                {"nonce": nonce, "client_id": settings.client_id, "access_token": token.get("access_token")},
            )
            claims.validate(leeway=LEEWAY)
        except (JoseError, ValueError, TypeError) as error:
            raise _refused(f"its ID token is invalid: {getattr(error, 'error', type(error).__name__)}") from None
        if not isinstance(claims["sub"], str) or not claims["sub"]:
            raise _refused("its ID token names no one")
        return dict(claims)

    def _silent(self, words: str = "Try again in a moment, or sign in with a key.") -> Unavailable:
        return Unavailable(
            f"People cannot sign in: {self._settings.issuer} gave no usable answer. {words}",
            code="sign_in_unavailable",
            retry_after=5,
        )


class _SharedFetch(Generic[T]):
    """A value that is fetched from the provider when it is needed. Concurrent callers share a fetch."""

    def __init__(self, fetch: Callable[[], Coroutine[None, None, T]], clock: Callable[[], float]) -> None:
        self._fetch, self._clock = fetch, clock
        self._value: tuple[float, T] | None = None
        self._task: asyncio.Task[T] | None = None

    async def get(self, fresh: float = FRESH) -> T:
        """Return the value, at most `fresh` seconds old. If a caller leaves, its fetch goes on."""
        if self._value is not None and self._clock() - self._value[0] < fresh:
            return self._value[1]
        if self._task is None:
            self._task = asyncio.create_task(self._fetch(), name="call to the sign-in provider")
            self._task.add_done_callback(self._ended)
        return await asyncio.shield(self._task)

    def forget(self) -> None:
        self._value = None

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is None:  # callers that wait for it raise its error, if any
            self._value = self._clock(), task.result()


class _BoundedStream(httpx.AsyncByteStream):
    """The bytes of an answer. Raises an error if there are too many."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > LARGEST:
                raise httpx.ReadError("the answer is larger than 1 MiB")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bound(response: httpx.Response) -> None:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    response.stream = _BoundedStream(response.stream)


def _object(response: httpx.Response) -> dict[str, object]:
    """Return the JSON object in an answer. Raises httpx.HTTPError if it is not one."""
    response.raise_for_status()
    try:
        return msgspec.json.decode(response.content, type=dict[str, object])
    except NOT_JSON:
        raise httpx.DecodingError("no JSON object", request=response.request) from None


def _too_many() -> QueueFull:
    return QueueFull("Too many people are signing in at the moment. Try again in a few seconds.", retry_after=5)


def _token_error(words: str) -> Unauthorized:
    return Unauthorized(f"This access token is not valid here. {words}", code="invalid_access_token")


def expired_error() -> Unauthorized:
    return Unauthorized("This access token has expired. Get a new one from the provider.", code="access_token_expired")


def _refused(cause: str) -> Unauthorized:
    """Log and return a refusal. cause: our own phrase or a protocol error code, never the provider's text."""
    log.warning("refused a sign-in", extra={"cause": cause})
    return Unauthorized("The sign-in failed. Start again.", code="sign_in_failed")
