"""Keys as an ASGI layer. A refused request's body is not read."""

from starlette.types import ASGIApp, Receive, Scope, Send

from registry.errors import Forbidden, NotFound, RoundhouseError, Unauthorized, Unavailable
from runtime.http.errors import error_response
from runtime.http.guard.access import dialect_of, required_scopes
from runtime.http.guard.origin import Headers
from runtime.http.middleware import gateway_of, set_caller
from tenants.caller import ANONYMOUS, EVERYBODY, Caller, Person
from tenants.keys.keyring import HOW

_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))
"""OpenAI's clients, Anthropic's, Azure's."""
_BEARER = "bearer "


class KeyMiddleware:
    """Puts the caller into the request's context."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _take_cookies(scope)
            try:
                caller = _authorize(scope)
            except RoundhouseError as refusal:
                await error_response(refusal, dialect_of(scope["path"]))(scope, receive, send)
                return
            if caller is not EVERYBODY:
                set_caller(scope, caller)
        await self._app(scope, receive, send)


def _take_cookies(scope: Scope) -> None:
    """Leave only the console's cookies: of its session, and of a sign-in under way."""
    cookies = [value for name, value in scope["headers"] if name == b"cookie"]
    if not cookies:
        return
    own = gateway_of(scope).services.console.sessions.own_cookie(b"; ".join(cookies).decode("latin-1"))
    rest = [header for header in scope["headers"] if header[0] != b"cookie"]
    scope["headers"] = [*rest, (b"cookie", own.encode())] if own else rest


def _authorize(scope: Scope) -> Caller:
    """Raises Unauthorized, Forbidden, NotFound, Unavailable."""
    method, path = scope["method"], scope["path"]
    try:
        scopes = required_scopes(method, path)
    except NotFound:
        if gateway_of(scope).services.callers.identify(presented_keys(scope["headers"])) is EVERYBODY:
            return EVERYBODY  # the application tells what is there
        raise
    if scopes is None:
        return current_caller(scope)
    caller = _caller(scope)
    if caller.scopes.isdisjoint(scopes):
        words = " or ".join(f"'{word}'" for word in sorted(scopes))
        if caller.key is None:
            how = f"Make one with `roundhouse keys create --scopes {min(scopes)}`. {HOW}"
            raise Forbidden(f"{path} needs a key with the scope {words}. {how}", code="insufficient_scope")
        raise Forbidden(f"This key may not use {path}: it needs the scope {words}.", code="insufficient_scope")
    return caller


def current_caller(scope: Scope) -> Caller:
    """The caller now, where none needs a key: keys and sessions end in mid-answer."""
    try:
        return _caller(scope)
    except (Unauthorized, Unavailable):  # also while keys cannot be read: the process lives
        return ANONYMOUS


def _caller(scope: Scope) -> Caller:
    """By the request's keys, or by the browser's session with the console. Raises Unauthorized, Unavailable."""
    services = gateway_of(scope).services
    if keys := presented_keys(scope["headers"]):
        return services.callers.identify(keys)
    cookie = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"), None)
    credential = None if cookie is None else services.console.sessions.credential(cookie)
    if isinstance(credential, Person):
        return services.callers.member(credential)
    return services.callers.identify([] if credential is None else [credential])


def presented_keys(headers: Headers) -> list[str]:
    """The keys that came with a request; a bearer's and the bare ones."""
    keys = []
    for name, value in headers:
        if name in _HEADERS:
            text = value.decode("latin-1").strip()
            if name == b"authorization":
                if text[: len(_BEARER)].lower() != _BEARER:
                    continue
                text = text[len(_BEARER) :].strip()
            keys.append(text)
    return keys
