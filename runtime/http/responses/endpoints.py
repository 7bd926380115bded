"""Stored responses by id. Callers cannot see those of other teams."""

from typing import Annotated

import msgspec
from fastapi import Path, Query
from fastapi.responses import Response

from registry.errors import BadRequest
from runtime.http.admin.bodies import json_answer
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.organization.pages import LIST, After, Count, Order, page
from runtime.http.responses.conversation import listed
from runtime.http.route import RouteGroup
from runtime.http.schema import MANAGEMENT
from tenants.caller import Scope
from tenants.responses.rows import edit

route = RouteGroup("Chat")
ERRORS = (*MANAGEMENT, 429, 503)
Id = Annotated[str, Path(alias="response_id", description="of an answer with `store: true`")]


class DeletedResponseView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "response"
    deleted: bool = True


@route("GET", "/v1/responses/{response_id}", scope=Scope.INFER, answer="ResponsesResponse", errors=ERRORS)
async def get_response(
    gateway: CurrentGateway,
    context: CurrentContext,
    response_id: Id,
    stream: Annotated[bool, Query(description="Only false: a stored response is given whole")] = False,
) -> Response:
    """Show a stored response.

    A background response is `in_progress` until it ends.
    """
    if stream:
        raise BadRequest(
            "A stored response is given whole: leave 'stream' out, and ask again while it is in_progress.",
            param="stream",
            code="unsupported_value",
        )
    return _answer((await gateway.services.responses.get(context.caller.team, response_id)).answer)


@route("DELETE", "/v1/responses/{response_id}", scope=Scope.INFER, answer=DeletedResponseView, errors=ERRORS)
async def delete_response(gateway: CurrentGateway, context: CurrentContext, response_id: Id) -> Response:
    """Delete a stored response.

    Its work is cancelled. Responses that continue from it keep its content.
    """
    await gateway.services.responses.delete(context.caller.team, response_id)
    return json_answer(DeletedResponseView(id=response_id))


@route("GET", "/v1/responses/{response_id}/input_items", scope=Scope.INFER, answer=LIST, errors=ERRORS)
async def list_input_items(
    gateway: CurrentGateway,
    context: CurrentContext,
    response_id: Id,
    after: After = None,
    limit: Count = 20,
    order: Order = "desc",
) -> Response:
    """List what a stored response was given.

    Includes the items of the responses from which it continues.
    """
    items = listed(await gateway.services.responses.get(context.caller.team, response_id))
    return page(items if order == "asc" else items[::-1], after, limit)


@route("POST", "/v1/responses/{response_id}/cancel", scope=Scope.INFER, answer="ResponsesResponse", errors=ERRORS)
async def cancel_response(gateway: CurrentGateway, context: CurrentContext, response_id: Id) -> Response:
    """Stop a background response.

    Does nothing if it has ended.
    """
    store = gateway.services.responses
    row = await store.get(context.caller.team, response_id)
    if msgspec.json.decode(row.answer).get("background") is not True:  # some providers' answers lack it
        raise BadRequest(
            f"The response {response_id} was not made in the background: close its connection to stop one.",
            param="response_id",
        )
    if row.running:
        row = await store.end(row, edit(row.answer, {"status": "cancelled"}))
    return _answer(row.answer)


def _answer(answer: bytes) -> Response:
    return Response(answer, media_type="application/json")
