"""`GET /v1/requests/{id}`: all that is known of one request."""

import msgspec
from fastapi.responses import Response

from console.history import LAST, RequestRow
from registry.base.wording import quoted
from registry.errors import NotFound
from runtime.http.admin.answers import json_answer
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.sending import Route
from tenants.caller import Scope
from tenants.ledger.lookup import LedgerRow


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """record: of the last requests, in memory; ledger: a row for each attempt. No texts are kept in either."""

    object: str = "request"
    id: str
    record: RequestRow | None
    ledger: list[LedgerRow]


async def show(gateway: CurrentGateway, context: CurrentContext, request_id: str) -> Response:
    """How one request went: where its time went, why it was routed there, what it cost. A team sees its own."""
    team = None if Scope.ADMIN in context.caller.scopes else context.caller.team
    record = gateway.services.console.history.find(request_id, team)
    rows = await gateway.services.usage.of_request(team, request_id)
    if record is None and not rows:
        raise NotFound(
            f"Nothing is known of a request {quoted(request_id)} of yours. Send its answer's X-Request-Id: the last "
            f"{LAST:,} are kept, and what is in the ledger, which begins with the first team or key.",
            code="request_not_found",
        )
    return json_answer(RequestView(id=request_id, record=record, ledger=rows))


ROUTES: list[Route] = [("/v1/requests/{request_id:path}", show, ["GET"])]
