"""OpenAI's Batches: create, show, list, cancel."""

from functools import partial
from typing import Annotated, Literal

from fastapi import Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from batches.callbacks.records import MOST_URL
from batches.intake.creation import NewBatch
from batches.records import URLS
from batches.service import OUTPUT_SECONDS
from registry.errors import BadRequest
from runtime.http.admin.bodies import json_answer
from runtime.http.batches.files import LEAST_LIFE
from runtime.http.batches.idempotency import body_hash, idempotency_key
from runtime.http.batches.views import HOUR, batch_view
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.organization.pages import LIST, After, Count, list_answer
from runtime.http.route import RouteGroup
from runtime.http.schema import ANY_OBJECT, CONFLICT, COUNT, MANAGEMENT, STRING, component, nullable, one_of, record
from tenants.caller import Scope

route = partial(RouteGroup("Batches"), errors=(*MANAGEMENT, 429, 503))
PATH = "/v1/batches"
SURFACE = "openai"
MOST_HOURS = 168
PRIORITIES = ("low", "normal", "high")
_COUNTS = record({"total": COUNT, "completed": COUNT, "failed": COUNT})
_TIMES = (
    "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at",
    "cancelled_at",
)  # fmt: skip
BATCH = component(
    "Batch",
    record(
        {
            "id": STRING,
            "object": {"const": "batch"},
            "endpoint": STRING,
            "errors": nullable(ANY_OBJECT),
            "input_file_id": STRING,
            "completion_window": STRING,
            "status": one_of(
                "validating", "failed", "in_progress", "completed", "expired", "cancelling", "cancelled"
            ),
            "output_file_id": {**nullable(STRING), "description": "Null until the end, and where no line succeeded."},
            "error_file_id": {**nullable(STRING), "description": "Null until the end, and where no line failed."},
            "created_at": COUNT,
            **{name: nullable(COUNT) for name in _TIMES},
            "request_counts": _COUNTS,
            "usage": ANY_OBJECT,
            "metadata": nullable(ANY_OBJECT),
            "roundhouse": {**ANY_OBJECT, "description": "Priority, callback, forecast, and why the batch waits."},
        }
    ),
)  # fmt: skip
Id = Annotated[str, Path(alias="batch_id", max_length=128)]
Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]


class OutputLife(BaseModel):
    """The life of stored answers, from the end of the batch on."""

    model_config = ConfigDict(extra="forbid")
    anchor: Literal["created_at"] = Field(description="creation of the output file")
    seconds: int = Field(ge=LEAST_LIFE, le=OUTPUT_SECONDS)


class BatchBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    input_file_id: str = Field(min_length=1, max_length=128, description="of a file with the purpose `batch`")
    endpoint: str = Field(max_length=64, description="the url of each line")
    completion_window: str = Field(
        default="24h", pattern=r"^[1-9]\d{0,2}h$", description="`24h` as OpenAI's, or `1h` to `168h`"
    )
    metadata: Metadata | None = None
    priority: Literal["low", "normal", "high"] = Field(
        default="normal", description="order among the batches of the team"
    )
    callback_url: str | None = Field(
        default=None, min_length=1, max_length=MOST_URL, description="https URL that is called when the batch ends"
    )
    output_expires_after: OutputLife | None = None


@route("POST", PATH, scope=Scope.INFER, answer=BATCH, body=BatchBody, errors=(*CONFLICT, 429, 503))
async def create_batch(request: Request, gateway: CurrentGateway, context: CurrentContext, body: BatchBody) -> Response:
    """Create a batch.

    Each line of the input file is a request, answered within the window from idle capacity. Faults in the file do not
    fail this call: the batch becomes `failed`, with the faults in `errors`.
    """
    if body.endpoint not in URLS:
        raise BadRequest(f"The endpoint of a batch is one of {', '.join(URLS)}.", param="endpoint")
    if body.callback_url is not None:
        await gateway.services.batches.callbacks.addresses.check(body.callback_url, "callback_url", context.caller.team)
    new = NewBatch(
        team=context.caller.team,
        key=context.caller.key or "",
        surface=SURFACE,
        endpoint=body.endpoint,
        input_file=body.input_file_id,
        window=window_seconds(body.completion_window),
        priority=PRIORITIES.index(body.priority),
        metadata=body.metadata or {},
        idempotency=idempotency_key(request),
        body_hash=body_hash(body),
        callback=body.callback_url or "",
        output_seconds=None if body.output_expires_after is None else body.output_expires_after.seconds,
    )
    return json_answer(batch_view(await gateway.services.batches.create(new)))


@route("GET", PATH, scope=Scope.INFER, answer=LIST)
async def list_batches(
    gateway: CurrentGateway,
    context: CurrentContext,
    after: After = None,
    limit: Count = 20,
) -> Response:
    """List batches, the newest first."""
    batches, more = await gateway.services.batches.list(context.caller.team, SURFACE, after, limit)
    return list_answer([batch_view(batch) for batch in batches], more)


@route("GET", f"{PATH}/{{batch_id}}", scope=Scope.INFER, answer=BATCH)
async def get_batch(gateway: CurrentGateway, context: CurrentContext, batch_id: Id) -> Response:
    """Show a batch.

    Counts and usage grow as lines end.
    """
    return json_answer(batch_view(await gateway.services.batches.get(context.caller.team, batch_id, SURFACE)))


@route("POST", f"{PATH}/{{batch_id}}/cancel", scope=Scope.INFER, answer=BATCH, errors=(*CONFLICT, 429, 503))
async def cancel_batch(gateway: CurrentGateway, context: CurrentContext, batch_id: Id) -> Response:
    """Cancel a batch.

    Answers so far are kept. Lines that have not begun stand in the error file as `batch_cancelled`.
    """
    return json_answer(batch_view(await gateway.services.batches.cancel(context.caller.team, batch_id, SURFACE)))


def window_seconds(window: str) -> int:
    """Seconds of a completion window such as 24h. Raises BadRequest."""
    hours = int(window.removesuffix("h"))
    if hours > MOST_HOURS:
        raise BadRequest(f"A completion window may be 1h to {MOST_HOURS}h.", param="completion_window")
    return hours * HOUR
