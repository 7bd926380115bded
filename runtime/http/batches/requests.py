"""`POST /v1/batch`: our short form, with the requests in the body or in a file."""

from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batches.callbacks.records import MOST_URL
from batches.intake.creation import NewBatch
from batches.records import URLS
from registry.errors import BadRequest
from runtime.http.admin.bodies import json_answer
from runtime.http.batches.endpoints import PATH as BATCHES
from runtime.http.batches.endpoints import PRIORITIES, SURFACE, Metadata, window_seconds
from runtime.http.batches.idempotency import idempotency_key
from runtime.http.batches.incoming import receive_body
from runtime.http.bodies import model_error
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.route import RouteGroup
from runtime.http.schema import CONFLICT, COUNT, STRING, component, nullable, record
from tenants.caller import Scope

route = RouteGroup("Batches")
PATH = "/v1/batch"
MOST_REQUESTS = 50_000
CREATED = component(
    "BatchCreated",
    record(
        {
            "batch_id": STRING,
            "status_url": STRING,
            "expires_at": COUNT,
            "estimated_completion": {**nullable(COUNT), "description": "Null: nothing is known of its models yet."},
            "late": {"type": "boolean", "description": "It is expected to need more than its window."},
        }
    ),
)


class BatchRest(BaseModel):
    """The body without its requests."""

    model_config = ConfigDict(extra="forbid")
    url: str = Field(description="path of each request, such as /v1/chat/completions")
    input_file_id: str | None = Field(default=None, min_length=1, max_length=128, description="in place of `requests`")
    priority: Literal["low", "normal", "high"] = "normal"
    completion_window: Annotated[str, Field(pattern=r"^[1-9]\d{0,2}h$")] = "24h"
    callback_url: str | None = Field(
        default=None, min_length=1, max_length=MOST_URL, description="https URL that is called when the batch ends"
    )
    metadata: Metadata | None = None


class BatchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    custom_id: str = ""
    body: dict[str, Any]


class BatchRequests(BatchRest):
    """Requests, or the id of a file with them."""

    requests: list[BatchRequest] = []


@route("POST", PATH, scope=Scope.INFER, answer=CREATED, body=BatchRequests, errors=(*CONFLICT, 413, 429, 500, 503, 507))
async def create_batch_of_requests(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Create a batch of requests.

    Takes the requests' bodies, or the id of an uploaded file. The batch then appears in `/v1/batches`.
    """
    service, key = gateway.services.batches, idempotency_key(request)
    async with receive_body(request, gateway) as stored:
        summary = await service.files.split(context.caller.team, stored.path, "requests", URLS, MOST_REQUESTS)
        rest = _rest(bytes(summary.rest))
        if (rest.input_file_id is None) != bool(summary.lines):
            raise BadRequest("Send 'requests' or 'input_file_id', one of them.", param="requests")
        if rest.callback_url is not None:
            await service.callbacks.addresses.check(rest.callback_url, "callback_url", context.caller.team)
        new = NewBatch(
            team=context.caller.team,
            key=context.caller.key or "",
            surface=SURFACE,
            endpoint=rest.url,
            window=window_seconds(rest.completion_window),
            input_file=rest.input_file_id or "",
            priority=PRIORITIES.index(rest.priority),
            metadata=rest.metadata or {},
            idempotency=key,
            body_hash=stored.digest if key else "",
            callback=rest.callback_url or "",
        )
        if rest.input_file_id is not None:
            batch = await service.create(new)
        else:
            batch = await service.create_of_requests(new, stored.path, summary.lines)
    base = (gateway.services.settings.public_url or "").rstrip("/")
    answer = {
        "batch_id": batch.id,
        "status_url": f"{base}{BATCHES}/{batch.id}",
        "expires_at": int(batch.deadline),
        "estimated_completion": None if batch.forecast is None else int(batch.forecast.likely),
        "late": batch.is_late,
    }
    return json_answer(answer)


def _rest(data: bytes) -> BatchRest:
    """Raises BadRequest."""
    try:
        return BatchRest.model_validate_json(data)
    except ValidationError as error:
        raise model_error(error) from None
