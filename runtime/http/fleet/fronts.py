"""Fronts have no models: what needs one is passed on to a node, or refused.

| path                                       | a front                                                   |
|--------------------------------------------|-----------------------------------------------------------|
| adapters, merged models, adding, changing  | forwards it to a node that has the model, since only that |
| and removing models, aliases, changes of   | can check it. A path in a body is one on that node        |
| routers                                    |                                                           |
| files and batches                          | handles it: they are in the database, and nodes run lines |
| one request's record                       | forwards it to the node that answered, if known;          |
|                                            | otherwise answers from the ledger                         |
| other changes of models: loads, pins       | refuses it with 409 `is_front`                            |

The node acts for the same caller, and its answer comes back unchanged.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from urllib.parse import unquote

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from registry.errors import BadRequest, FinalConflict, NodeFailed, NotFound, RoundhouseError
from runtime.gateway.backend import RelayedAnswer
from runtime.gateway.peers.service import Fleet
from runtime.http.errors import error_response
from runtime.http.guard.access import dialect_of
from runtime.http.middleware import context_of, gateway_of
from runtime.http.sending import start_message
from runtime.http.serving import beginning_of

PASSED = re.compile(r"/v1/(adapters|merged)(/|\Z)|/v1/(un)?load_lora_adapter\Z|/v1/models/.+/aliases/")
"""Paths, and templates of routes."""
CHANGES = re.compile(r"/v1/routers(/|\Z)")
"""The same, but for what only reads: each server has all routers."""
_OF_ONE_NODE = re.compile(r"/v1/models/.+/(load|unload|plan|pin|estimate|download)\Z")
MODEL_ROUTES = frozenset(("/v1/models", "/v1/models/{model:path}", "/v1/models/{model:path}/recipe"))
"""Templates of routes whose changes are passed on: each node follows recipes that were added at run time."""
MODEL, REQUEST = "/v1/models/", "/v1/requests/"
BEGINNING = 64 * 2**10
"""Bytes of a body in which the model's name is looked for. Without it any node is asked, and says what is wrong."""
LONGEST_NAME = 512
_BASE = re.compile(
    rb'"base(?:_model_name)?"\s*:\s*"([^"\\]{1,512})"'
    rb'|name="base"[^\r\n]{0,256}+\r\n(?:[^\r\n]{1,256}+\r\n){0,4}+\r\n([^\r]{1,512})'
)
"""Each part has a bound, here and below: a client may write the beginning of a match thousands of times."""
_PART = re.compile(rb'"adapters"\s*:\s*\[\s*\{[^}]{0,256}?"name"\s*:\s*"([^"\\]{1,512})"')
_CHANGED = re.compile(r"/v1/models(/|\Z)|/api/(pull|delete|copy|create|push)\Z")


class FrontMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine, since one per layer would stay in memory as long as a stream runs."""
        if scope["type"] == "http":
            path, method = scope["path"], scope["method"]
            node = _node_of_request(scope) if path.startswith(REQUEST) else None
            if node is not None or is_passed_on(method, path):
                return _answer(scope, receive, send, node)
            if method not in ("GET", "HEAD") and _CHANGED.match(path):
                error = FinalConflict(
                    f"This server is a front and has no models of its own: send this to {_place_for(scope)}. "
                    "Any server moves a model to other nodes: roundhouse fleet place.",
                    code="is_front",
                )
                return error_response(error, dialect_of(path))(scope, receive, send)
        return self._app(scope, receive, send)


def is_passed_on(method: str, path: str) -> bool:
    """Whether a front passes on a request other than inference."""
    if PASSED.match(path):
        return True
    if method in ("GET", "HEAD"):
        return path.startswith(MODEL) and path.endswith("/recipe")
    if CHANGES.match(path):
        return True
    is_model = path.startswith(MODEL) and not _OF_ONE_NODE.match(path)
    return (method == "POST" and path == "/v1/models") or (method in ("PATCH", "DELETE") and is_model)


def _node_of_request(scope: Scope) -> str | None:
    """The node that answered the request that the path names; None: it is not known here, or gone."""
    fleet = gateway_of(scope).services.fleet
    return None if fleet is None else fleet.node_of_request(scope["path"].removeprefix(REQUEST))


async def _answer(scope: Scope, receive: Receive, send: Send, node: str | None) -> None:
    """Pass a request on, and answer its errors."""
    try:
        await _pass_on(scope, receive, send, node)
    except RoundhouseError as error:
        await error_response(error, dialect_of(scope["path"]))(scope, receive, send)


async def _pass_on(scope: Scope, receive: Receive, send: Send, node: str | None) -> None:
    """node: None: one that can do it. Raises Unavailable where no node takes requests, NodeFailed."""
    context, fleet = context_of(scope), gateway_of(scope).services.fleet
    assert fleet is not None, "it is a front"
    body = _body(receive)
    beginning, is_whole = (b"", True) if scope["method"] == "GET" else await _beginning(body)
    if node is None:
        node = fleet.node_for(_model_of(scope, fleet) or _base_in(beginning) or _base_of_part(beginning, scope, fleet))
    query = scope["query_string"].decode("latin-1")
    path = scope["raw_path"].decode("latin-1").partition("?")[0] + (f"?{query}" if query else "")
    content = (beginning or None) if is_whole else _joined(beginning, body)
    async with fleet.exchange(context, scope["method"], node, path, content, scope["headers"]) as answer:
        if answer.status < 300 and scope["method"] not in ("GET", "HEAD"):  # the client's next request is about it
            await fleet.read_names()
        made = answer.headers.get("location", "")
        if answer.status == 201 and made.startswith(MODEL):
            await fleet.wait_for_model(unquote(made.removeprefix(MODEL)))
        await _send_answer(answer, send)


async def _send_answer(answer: RelayedAnswer, send: Send) -> None:
    """Send another server's answer to the client. Raises NodeFailed if nothing was sent yet."""
    head, data = await beginning_of(answer)
    await send(start_message(head))
    try:
        while data or (data := await answer.read()):
            await send({"type": "http.response.body", "body": data, "more_body": True})
            data = b""
    except NodeFailed:
        return  # uvicorn closes a connection whose answer has no end, so the client sees that the rest is missing
    await send({"type": "http.response.body"})


def _model_of(scope: Scope, fleet: Fleet) -> str | None:
    """The model of the adapter, or the model, that the path names; None: it names none that is known."""
    kind, _, rest = scope["path"].removeprefix("/v1/").partition("/")
    parts = rest[:LONGEST_NAME].split("/")
    for end in range(len(parts), 0, -1):  # 'team/name/aliases/prod': names have slashes, too
        with suppress(NotFound, BadRequest):
            return fleet.model_of("/".join(parts[:end]), context_of(scope).caller, is_adapter=kind == "adapters")
    return None


def _nodes_of_model(scope: Scope) -> Sequence[str]:
    """The nodes that can load the model that the path names; none where it names none that is known."""
    fleet = gateway_of(scope).services.fleet
    model = None if fleet is None or not scope["path"].startswith(MODEL) else _model_of(scope, fleet)
    return [] if fleet is None or model is None else fleet.nodes_with_model(model)


def _place_for(scope: Scope) -> str:
    """Say where a change of a model has to be sent."""
    nodes = _nodes_of_model(scope)
    return f"one of the nodes that have the model ({', '.join(nodes)})" if nodes else "a node of the fleet"


def _base_in(beginning: bytes) -> str | None:
    match = _BASE.search(beginning)
    return None if match is None else (match[1] or match[2]).decode("utf-8", "replace")


def _base_of_part(beginning: bytes, scope: Scope, fleet: Fleet) -> str | None:
    """Find the base of the first adapter that is to be combined."""
    match = _PART.search(beginning)
    if match is None:
        return None
    name = match[1].decode("utf-8", "replace").partition("@")[0]
    with suppress(NotFound, BadRequest):
        return fleet.model_of(name, context_of(scope).caller, is_adapter=True)
    return None


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if data := message.get("body"):
            yield data
        if not message.get("more_body"):
            return


async def _beginning(body: AsyncIterator[bytes]) -> tuple[bytes, bool]:
    """Read the first bytes of a body, and say whether they are all of it."""
    read = b""
    async for data in body:
        read += data
        if len(read) >= BEGINNING:
            return read, False
    return read, True


async def _joined(beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for data in rest:
        yield data
