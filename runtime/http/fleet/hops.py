"""ASGI layers for requests that another server of the fleet forwards.

| on the fleet's port                            | what happens                                         |
|------------------------------------------------|------------------------------------------------------|
| no certificate or signature of the fleet       | closed (`fleet.tls`) or 421 (`fleet.signatures`)     |
| no context, or an invalid one                  | 400 `invalid_context`                                |
| a key that is revoked, expired or unknown here | 401, as for a client                                 |
| this server stops, or has lost its name        | 421, so that it is retried elsewhere                 |
| weights or files that are not here, or a model | 421 (`Gateway.choose`)                               |
| that has just moved to another node            |                                                      |
| a key without the path's scope                 | 403, as for a client                                 |
| otherwise                                      | runs as if the client had sent it here with that key |

The public port drops and counts the header, since clients must not set it.
"""

import time
from collections.abc import Awaitable
from dataclasses import replace

from starlette.types import ASGIApp, Receive, Scope, Send

from fleet.signatures import HEADER as SIGNATURE
from fleet.signatures import FleetKey, SignedRequest
from registry.errors import BadRequest, Misdirected, RoundhouseError, Unauthorized
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.gateway.peers.hop import HEADER, Hop, decode, moment
from runtime.http.errors import error_response
from runtime.http.guard.access import dialect_of, required_scopes
from runtime.http.guard.keys import check_scopes
from runtime.http.middleware import context_of, gateway_of, set_context
from tenants.caller import PERSON_MARK, Caller, Person

_HEADER = HEADER.encode()
OWN_PATHS = "/fleet/"
"""Prefix of paths for other servers, which need a certificate or signature."""


class SignatureMiddleware:
    """Accepts only requests signed with the fleet's key. Runs before `HopMiddleware`, so before a body is read."""

    def __init__(self, app: ASGIApp, key: FleetKey) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
            context, signature = (_header(scope, name) for name in (_HEADER, SIGNATURE.encode()))
            request = SignedRequest(self._key.name, scope["method"], path.decode("latin-1"), context)
            try:
                self._key.check(request, signature)
            except Misdirected as refusal:
                await error_response(refusal, dialect_of(scope["path"]))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _header(scope: Scope, name: bytes) -> str:
    """The value of a header, empty if absent. Repeated ones are joined by line feeds, which are never signed."""
    return b"\n".join(value for other, value in scope["headers"] if other == name).decode("latin-1")


class HopMiddleware:
    """Takes caller and weights from the other server. Runs inside `ContextMiddleware`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(OWN_PATHS):
            try:
                await _take(scope)
            except RoundhouseError as refusal:
                await error_response(refusal, dialect_of(scope["path"]))(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _take(scope: Scope) -> None:
    """Raises BadRequest, Misdirected, Unauthorized, Forbidden, Unavailable."""
    gateway = gateway_of(scope)
    fleet = gateway.services.fleet
    if fleet is None or not fleet.takes_requests or gateway.phase == "stopping":
        raise Misdirected("This server takes no requests of the fleet now.")
    values = [value for name, value in scope["headers"] if name == _HEADER]
    if len(values) != 1:
        raise BadRequest(f"A request to this port needs one {HEADER}.", code="invalid_context")
    hop = decode(values[0])
    caller = await _caller(gateway, hop)
    check_scopes(caller, required_scopes(scope["method"], scope["path"]), scope["path"])
    scope["headers"] = [header for header in scope["headers"] if header[0] != _HEADER]
    set_context(scope, _with_hop(context_of(scope), hop, caller, scope))


async def _caller(gateway: Gateway, hop: Hop) -> Caller:
    """The caller according to this server's own keys. A new key may not have arrived here yet."""
    if not hop.key:
        return hop.caller
    try:
        return _known(gateway, hop)
    except Unauthorized:
        await gateway.services.administration.refresh()
        return _known(gateway, hop)


def _known(gateway: Gateway, hop: Hop) -> Caller:
    """Raises Unauthorized."""
    keyring = gateway.services.keyring()
    if hop.scopes and hop.key.startswith(PERSON_MARK):
        return keyring.member(Person(hop.key, "", hop.team, frozenset(hop.scopes)))
    return keyring.by_id(hop.key, hop.team)


def _with_hop(context: RequestContext, hop: Hop, caller: Caller, scope: Scope) -> RequestContext:
    return replace(
        context,
        id=hop.id,
        caller=caller,
        service_class=max(hop.service_class, caller.ceiling),
        arrived=time.monotonic(),
        deadline=moment(hop.left),
        first_by=moment(hop.first_left),
        source=hop.source,
        headers=scope["headers"],
        hop=hop.exact_target,
    )


class HopHeaderFilter:
    """Drops and counts the fleet's own header on the public port."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine, since one per layer would stay in memory as long as a stream runs."""
        if scope["type"] == "http" and _HEADER in dict(scope["headers"]):
            scope["headers"] = [header for header in scope["headers"] if header[0] != _HEADER]
            if (fleet := gateway_of(scope).services.fleet) is not None:
                fleet.count_dropped()
        return self._app(scope, receive, send)
