"""Checks keys in an ASGI layer. The body of a refused request is not read."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from console.rendering import is_secure
from registry.errors import Forbidden, NotFound, RoundhouseError, Unauthorized, Unavailable
from runtime.http.errors import error_response
from runtime.http.guard.access import dialect_of, required_scopes
from runtime.http.guard.origin import READS, Headers, is_own_page
from runtime.http.middleware import gateway_of, set_caller
from tenants.caller import ANONYMOUS, EVERYBODY, Caller, Person
from tenants.caller import Scope as KeyScope
from tenants.keys.keyring import HOW
from tenants.keys.secret import PREFIX

if TYPE_CHECKING:  # most servers never need the OIDC client
    from tenants.sign_in.flow import SignIn

KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))
"""Headers in which clients of OpenAI, Anthropic and Azure send keys."""
_BEARER = "bearer "


class KeyMiddleware:
    """Puts the caller into the request's context."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _take_cookies(scope)
            try:
                caller = await _authorize(scope)
            except RoundhouseError as refusal:
                await error_response(refusal, dialect_of(scope["path"]))(scope, receive, send)
                return
            if caller is not EVERYBODY:
                set_caller(scope, caller)
        await self._app(scope, receive, send)


async def _take_cookies(scope: Scope) -> None:
    """Keep only the console's cookies, of a session or of a sign-in in progress.

    None of them if another page sends a change, even one of --cors-origins: browsers add a session to requests of pages
    at other ports and subdomains. In a fleet the session may have begun or ended at another server.
    """
    cookies = [value for name, value in scope["headers"] if name == b"cookie"]
    if not cookies:
        return
    sessions = gateway_of(scope).services.console.sessions
    secure = is_secure(HTTPConnection(scope))
    is_own = scope["method"] in READS or is_own_page(scope["headers"])
    own = sessions.own_cookie(b"; ".join(cookies).decode("latin-1"), secure=secure) if is_own else ""
    rest = [header for header in scope["headers"] if header[0] != b"cookie"]
    scope["headers"] = [*rest, (b"cookie", own.encode())] if own else rest
    if own and sessions.is_shared and not presented_keys(rest):
        await sessions.refresh(own)


async def _authorize(scope: Scope) -> Caller:
    """Raises Unauthorized, Forbidden, NotFound, Unavailable."""
    method, path = scope["method"], scope["path"]
    try:
        scopes = required_scopes(method, path)
    except NotFound:
        await _check_token(scope)
        if _caller(scope) is EVERYBODY:
            return EVERYBODY  # the application's 404 lists what exists
        raise
    if scopes is None:
        with suppress(Unauthorized, Forbidden, Unavailable):
            await _check_token(scope)
        return current_caller(scope)
    await _check_token(scope)
    caller = _caller(scope)
    check_scopes(caller, scopes, path)
    return caller


def check_scopes(caller: Caller, scopes: frozenset[KeyScope] | None, path: str) -> None:
    """scopes: the path needs one of them. None if it needs none. Raises Forbidden."""
    if scopes is not None and caller.scopes.isdisjoint(scopes):
        words = " or ".join(f"'{word}'" for word in sorted(scopes))
        if caller.key is None:
            how = f"Make one with `roundhouse keys create --scopes {min(scopes)}`. {HOW}"
            raise Forbidden(f"{path} needs a key with the scope {words}. {how}", code="insufficient_scope")
        raise Forbidden(f"This key may not use {path}: it needs the scope {words}.", code="insufficient_scope")


async def _check_token(scope: Scope) -> None:
    """Check a provider's access token, if one came with the request; this may call the provider.

    Raises Unauthorized, Forbidden, Unavailable.
    """
    sign_in = gateway_of(scope).services.console.sign_in
    if sign_in is not None and (token := _token(sign_in, presented_keys(scope["headers"]))) is not None:
        await sign_in.tokens.check(token)


def _token(sign_in: "SignIn", keys: Sequence[str]) -> str | None:
    """The provider's access token in a request, which must be its only credential."""
    return keys[0] if len(set(keys)) == 1 and sign_in.tokens.is_issued(keys[0]) else None


def current_caller(scope: Scope) -> Caller:
    """Look up the caller again during an answer, since its key or session may have ended."""
    try:
        return _caller(scope)
    except (Unauthorized, Unavailable):  # also while keys are unreadable, so that liveness works
        return ANONYMOUS


def _caller(scope: Scope) -> Caller:
    """The caller by key, token or browser session. Raises Unauthorized, Unavailable."""
    services = gateway_of(scope).services
    if keys := presented_keys(scope["headers"]):
        sign_in = services.console.sign_in
        token = None if sign_in is None else _token(sign_in, keys)
        if sign_in is not None and token is not None:
            return services.keyring().member(sign_in.tokens.person(token))
        return services.keyring().identify(keys)
    cookie = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"), None)
    credential = None if cookie is None else services.console.sessions.credential(cookie)
    if isinstance(credential, Person):
        return services.keyring().member(credential)
    return services.keyring().identify([]) if credential is None else services.keyring().by_exact_id(credential)


def presented_keys(headers: Headers) -> list[str]:
    """The keys in a request, as bearer token or bare. An empty one is none: some clients send all headers.

    In Authorization only a key of this server may be bare, since another word there is the name of a scheme.
    """
    keys = []
    for name, value in headers:
        if name in KEY_HEADERS:
            text = value.decode("latin-1").strip()
            if name == b"authorization":
                if text[: len(_BEARER)].lower() == _BEARER:
                    text = text[len(_BEARER) :].strip()
                elif not text.startswith(PREFIX):
                    continue
            if text:
                keys.append(text)
    return keys
