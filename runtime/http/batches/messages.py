"""Anthropic's Message Batches: create, show, list, cancel, delete, results."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.responses import Response

from batches.intake.creation import ANTHROPIC, MOST_LINES, NewBatch
from batches.output import render_result
from batches.records import BatchRecord, BatchState
from batches.service import OUTPUT_SECONDS
from registry.base.wording import quoted, rfc3339
from registry.errors import BadRequest, NotFound
from runtime.http.admin.bodies import json_answer
from runtime.http.batches.idempotency import idempotency_key
from runtime.http.batches.incoming import receive_body
from runtime.http.batches.reading import rendered_answer
from runtime.http.batches.views import details
from runtime.http.errors import Dialect
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.route import RouteGroup
from runtime.http.schema import (
    ANY_OBJECT,
    BOOLEAN,
    CONFLICT,
    COUNT,
    MANAGEMENT,
    STRING,
    array,
    component,
    nullable,
    one_of,
    record,
    ref,
)
from tenants.caller import Scope

route = partial(RouteGroup("Batches", (Dialect.ANTHROPIC,)), errors=(*MANAGEMENT, 429, 503))
PATH, LINE_URL = "/v1/messages/batches", "/v1/messages"
WINDOW = 86_400
JSONL = "application/x-jsonl"
"""Some SDKs split lines of this type only."""
BATCH = component(
    "MessageBatch",
    record(
        {
            "id": STRING,
            "type": {"const": "message_batch"},
            "processing_status": one_of("in_progress", "canceling", "ended"),
            "request_counts": {
                **record(
                    dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), COUNT)
                ),
                "description": "Until the end all are `processing`, as Anthropic's; `roundhouse` has the progress.",
            },
            **dict.fromkeys(("created_at", "expires_at"), STRING),
            **dict.fromkeys(("ended_at", "cancel_initiated_at", "archived_at", "results_url"), nullable(STRING)),
            "roundhouse": ANY_OBJECT,
        }
    ),
)  # fmt: skip
LIST = component(
    "MessageBatchList",
    record(
        {
            "data": array(ref(BATCH)),
            "first_id": nullable(STRING),
            "last_id": nullable(STRING),
            "has_more": BOOLEAN,
        }
    ),
)
DELETED = component("MessageBatchDeleted", record({"id": STRING, "type": {"const": "message_batch_deleted"}}))
REQUESTS = component(
    "MessageBatchRequests",
    record({"requests": array(record({"custom_id": STRING, "params": ANY_OBJECT}))}, open_=False),
)
Id = Annotated[str, Path(alias="message_batch_id", max_length=128)]
AfterId = Annotated[str | None, Query(description="The batches that follow this one in the list")]
BeforeId = Annotated[str | None, Query(description="The batches before this one in the list")]


@route("POST", PATH, scope=Scope.INFER, answer=BATCH, body=REQUESTS, errors=(*CONFLICT, 413, 429, 500, 503, 507))
async def create_message_batch(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Create a batch of messages (Anthropic).

    Faults of the list fail this call; what a single request's `params` have wrong fails that request only.
    """
    service, key = gateway.services.batches, idempotency_key(request)
    async with receive_body(request, gateway) as body:
        summary = await service.files.split(
            context.caller.team, body.path, "messages", (LINE_URL,), MOST_LINES[ANTHROPIC]
        )
        if bytes(summary.rest) != b"{}" or not summary.lines:
            raise BadRequest("The body of a batch has one field, 'requests', with at least one request.")
        new = NewBatch(
            team=context.caller.team,
            key=context.caller.key or "",
            surface=ANTHROPIC,
            endpoint=LINE_URL,
            window=WINDOW,
            idempotency=key,
            body_hash=body.digest if key else "",
        )
        batch = await service.create_of_requests(new, body.path, summary.lines)
    return json_answer(_view(batch, gateway.services.settings.public_url))


@route("GET", PATH, scope=Scope.INFER, answer=LIST)
async def list_message_batches(
    gateway: CurrentGateway,
    context: CurrentContext,
    after_id: AfterId = None,
    before_id: BeforeId = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Entries per page")] = 20,
) -> Response:
    """List batches of messages, the newest first (Anthropic)."""
    if after_id is not None and before_id is not None:
        raise BadRequest("Send after_id or before_id, not both.", param="before_id")
    service, url = gateway.services.batches, gateway.services.settings.public_url
    is_back = before_id is not None
    batches, more = await service.list(
        context.caller.team,
        ANTHROPIC,
        before_id if is_back else after_id,
        limit,
        newest=not is_back,
        param="before_id" if is_back else "after_id",
    )
    rows = [_view(batch, url) for batch in (reversed(batches) if is_back else batches)]
    page: Mapping[str, Any] = {
        "data": rows,
        "first_id": rows[0]["id"] if rows else None,
        "last_id": rows[-1]["id"] if rows else None,
        "has_more": more,
    }
    return json_answer(page)


@route("GET", f"{PATH}/{{message_batch_id}}", scope=Scope.INFER, answer=BATCH)
async def get_message_batch(gateway: CurrentGateway, context: CurrentContext, message_batch_id: Id) -> Response:
    """Show a batch of messages (Anthropic)."""
    batch = await gateway.services.batches.get(context.caller.team, message_batch_id, ANTHROPIC)
    return json_answer(_view(batch, gateway.services.settings.public_url))


@route("POST", f"{PATH}/{{message_batch_id}}/cancel", scope=Scope.INFER, answer=BATCH, errors=(*CONFLICT, 429, 503))
async def cancel_message_batch(gateway: CurrentGateway, context: CurrentContext, message_batch_id: Id) -> Response:
    """Cancel a batch of messages (Anthropic).

    Requests that have not begun end as `canceled`; answers so far are kept.
    """
    batch = await gateway.services.batches.cancel(context.caller.team, message_batch_id, ANTHROPIC)
    return json_answer(_view(batch, gateway.services.settings.public_url))


@route("DELETE", f"{PATH}/{{message_batch_id}}", scope=Scope.INFER, answer=DELETED, errors=(*CONFLICT, 429, 503))
async def delete_message_batch(gateway: CurrentGateway, context: CurrentContext, message_batch_id: Id) -> Response:
    """Delete an ended batch of messages with its results (Anthropic)."""
    await gateway.services.batches.delete(context.caller.team, message_batch_id, ANTHROPIC)
    return json_answer({"id": message_batch_id, "type": "message_batch_deleted"})


@route("GET", f"{PATH}/{{message_batch_id}}/results", scope=Scope.INFER, answer={JSONL: STRING})
async def get_message_batch_results(gateway: CurrentGateway, context: CurrentContext, message_batch_id: Id) -> Response:
    """Read the results of an ended batch of messages, in the order of its requests (Anthropic)."""
    service = gateway.services.batches
    batch = await service.get(context.caller.team, message_batch_id, ANTHROPIC)
    if not batch.state.is_final:
        raise NotFound(
            f"Batch {quoted(message_batch_id)} has no results before its processing_status is ended.",
            code="batch_not_found",
        )
    return rendered_answer(service, batch, render_result, JSONL)


def _view(batch: BatchRecord, public_url: str | None) -> dict[str, Any]:
    counts, is_ended = batch.counts, batch.state.is_final
    progress = {
        "succeeded": counts.completed,
        "errored": counts.failed,
        "canceled": counts.cancelled,
        "expired": counts.expired,
    }
    tally = {"processing": 0, **progress} if is_ended else {"processing": counts.total, **dict.fromkeys(progress, 0)}
    status = "canceling" if batch.state is BatchState.CANCELLING else "ended" if is_ended else "in_progress"
    archived = None if batch.ended is None else batch.ended + OUTPUT_SECONDS
    if archived is not None and time.time() < archived:
        archived = None
    results = f"{(public_url or '').rstrip('/')}{PATH}/{batch.id}/results"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": tally,
        "created_at": _time(batch.created),
        "expires_at": _time(batch.deadline),
        "ended_at": _time(batch.ended),
        "cancel_initiated_at": _time(batch.cancelling),
        "archived_at": _time(archived),
        "results_url": results if is_ended and archived is None else None,
        "roundhouse": {**details(batch), "progress": progress},
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds)
