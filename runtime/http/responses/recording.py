"""Responses that are stored as they are answered, or computed in the background.

| team stores | store        | background | what happens                                                           |
|-------------|--------------|------------|------------------------------------------------------------------------|
| no          | any          | any        | the engine's own handling: it ignores or refuses the fields            |
| yes         | false        | no         | continues from `previous_response_id`; nothing is stored               |
| yes         | true, absent | no         | stored before the client gets its last event                           |
| yes         | true, absent | yes        | stored at once as `in_progress`, and replaced by the answer at its end |

A request that only counts its tokens continues from stored responses, too, and is never stored.
"""

import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from models import sse
from registry.base.json import NOT_JSON
from registry.errors import BadRequest, NotFound, RoundhouseError
from registry.recipes.definition import Task
from runtime.gateway.context import Preference, RequestContext
from runtime.gateway.core import Gateway
from runtime.gateway.names import ModelRef
from runtime.http.dialect import Endpoint, Head, Parts, whole_answer
from runtime.http.responses.conversation import StoreRequest, begun, error_of, new_id
from runtime.http.serving import refusal, serve
from tenants.responses.rows import edit, failure

log = logging.getLogger("roundhouse.http")
INPUT_TOKENS = "/v1/responses/input_tokens"
LONGEST_EVENT = 64 << 20
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_WHOLE = _ENDS | {"response.created", "response.queued", "response.in_progress"}
"""Events that contain the whole response."""


class _Typed(msgspec.Struct):
    type: str = ""


def serve_stored(
    gateway: Gateway, context: RequestContext, endpoint: Endpoint, body: bytes, query: Mapping[str, str] | None = None
) -> Parts:
    """Like `serve`, for teams that store: continues from stored responses and stores the answer."""
    if not gateway.services.responses.hours(context.caller.team):
        return serve(gateway, context, endpoint, body, query)
    return _serve(gateway, context, endpoint, body)


async def _serve(gateway: Gateway, context: RequestContext, endpoint: Endpoint, body: bytes) -> Parts:
    try:
        request = StoreRequest.of(body)
        if endpoint.path == INPUT_TOKENS:
            request.store = request.background = False
        items = await _input_items(gateway, context, request)
        if request.background:
            parts = await _begin(gateway, context, endpoint, request, items)
        else:
            parts = serve(gateway, context, endpoint, request.body, {})
    except RoundhouseError as error:
        with gateway.record(context, endpoint.path) as record:
            record.failed(error)
        for part in refusal(error, endpoint.dialect):
            yield part
        return
    if not request.background and endpoint.path != INPUT_TOKENS:
        parts = _Recorder(gateway, context, request, items).record(parts)
    async with aclosing(parts):
        async for part in parts:
            yield part


async def _input_items(gateway: Gateway, context: RequestContext, request: StoreRequest) -> bytes:
    """All items that the model gets, including earlier turns, as JSON."""
    store, team, row = gateway.services.responses, context.caller.team, None
    if request.previous is not None:
        try:
            row = await store.get(team, request.previous)
        except NotFound as error:
            raise BadRequest(error.message, param="previous_response_id", code="previous_response_not_found") from None
    items = request.with_history(row, await store.items(team, request.references()))
    if request.store:
        store.check_size(len(items))
    return items


class _Recorder:
    """Puts our own id into an answer and stores it."""

    def __init__(self, gateway: Gateway, context: RequestContext, request: StoreRequest, items: bytes) -> None:
        self._store, self._team, self._items = gateway.services.responses, context.caller.team, items
        self._stores, self._id = request.store, new_id()
        self._changes: dict[str, Any] = {"previous_response_id": request.previous, "store": request.store}
        if request.store:
            self._changes["id"] = self._id

    async def record(self, parts: Parts) -> Parts:
        head, whole, splitter = None, bytearray(), sse.Splitter(LONGEST_EVENT)
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Head):
                    length = {name: value for name, value in part.headers.items() if name.lower() != "content-length"}
                    head = part if part.status != 200 else Head(part.status, part.content_type, length)
                    yield head
                elif head is None or head.status != 200:
                    yield part
                elif head.is_stream:
                    for event in splitter.feed(part):
                        yield await self._event(event, kind) if (kind := _kind(event)) in _WHOLE else event
                else:
                    whole += part
        if whole:
            yield await self._end(bytes(whole))

    async def _event(self, event: bytes, kind: str) -> bytes:
        data = msgspec.json.decode(sse.data_of(event), type=dict[str, msgspec.Raw])
        if not bytes(data.get("response", b"")).startswith(b"{"):  # some providers leave it out
            return event
        response = await self._end(data["response"]) if kind in _ENDS else edit(data["response"], self._changes)
        return sse.with_data(event, msgspec.json.encode({**data, "response": msgspec.Raw(response)}))

    async def _end(self, response: bytes | msgspec.Raw) -> bytes:
        """Store the complete response. If that fails, the answer says `store: false`."""
        answer = edit(response, self._changes)
        if not self._stores:
            return answer
        try:
            is_stored = await self._store.put(self._id, self._team, self._items, answer)
        except RoundhouseError as error:
            log.warning("a response was not stored", extra={"cause": error.message})
            is_stored = False
        return answer if is_stored else edit(answer, {"store": False})


def _kind(event: bytes) -> str:
    """The kind of an event. Some providers leave out its name, which its data has, too."""
    if name := sse.data_of(event, b"event:"):
        return name.decode(errors="replace")
    try:
        return msgspec.json.decode(sse.data_of(event), type=_Typed).type
    except NOT_JSON:
        return ""


# --- background ------------------------------------------------------------------------------------------------------
async def _begin(
    gateway: Gateway, context: RequestContext, endpoint: Endpoint, request: StoreRequest, items: bytes
) -> Parts:
    """Store a response as in progress and start its work. Raises RoundhouseError if either is refused."""
    store, caller = gateway.services.responses, context.caller
    model = request.fields.get("model")
    gateway.check_name(ModelRef(Task.CHAT, model if isinstance(model, str) else None), context)
    id_ = new_id()
    answer = msgspec.json.encode(begun(id_, request))
    store.check_size(len(items) + len(answer))
    if not await store.put(id_, caller.team, items, answer, running=True):
        raise NotFound("This team stores no responses any more.", code="response_not_found")
    without_deadline = replace(context, first_by=None, preference=Preference(strict=context.preference.strict))
    store.run(id_, partial(_work, gateway, without_deadline, endpoint, request, answer))
    return whole_answer(answer)


async def _work(
    gateway: Gateway, context: RequestContext, endpoint: Endpoint, request: StoreRequest, answer: bytes
) -> bytes:
    """The complete response, even if it failed."""
    status, data = 500, bytearray()
    async with aclosing(serve(gateway, context, endpoint, request.body, {})) as parts:
        async for part in parts:
            if isinstance(part, Head):
                status = part.status
            else:
                data += part
    if status != 200:
        return edit(answer, failure(*error_of(status, bytes(data))))
    given = msgspec.json.decode(answer)
    kept = {name: given[name] for name in ("id", "created_at", "background", "store", "previous_response_id")}
    try:
        return edit(bytes(data), kept)
    except NOT_JSON:
        return edit(answer, failure(*error_of(500, b"")))
