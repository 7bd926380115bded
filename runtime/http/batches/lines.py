"""Runs batch lines as requests, and builds the worker that does so.

A line with a recording has a `file_id` in its body, which names an uploaded file in place of the form's file.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import msgspec

from batches.callbacks.deliverer import CallbackDeliverer
from batches.callbacks.sender import CallbackSender
from batches.intake.stored_files import missing_error
from batches.records import ADAPTER, BatchRecord
from batches.work.running import LineAttempt
from batches.work.worker import BatchWorker, RunLine
from registry.base.json import NOT_JSON
from registry.errors import BadRequest, RoundhouseError
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.http.audio.endpoints import TASKS, json_endpoint
from runtime.http.bodies import ADAPTER_FIELDS, too_large_error
from runtime.http.dialect import Endpoint
from runtime.http.routes import ENDPOINTS
from runtime.http.serving import serve
from tenants.caller import ServiceClass
from tenants.ledger.rows import BATCH

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def line_runner(gateway: Gateway, endpoints: Mapping[str, Endpoint]) -> RunLine:
    """Return the function that answers a line. endpoints: by path."""

    async def run(attempt: LineAttempt) -> None:
        """Answer a line. The attempt gets the complete answer before its row in the ledger ends."""
        class_ = ServiceClass.INTERACTIVE if attempt.is_raised else ServiceClass.BATCH
        context = RequestContext(attempt.request, attempt.caller, class_, source=BATCH, line=attempt)
        body = attempt.body
        if attempt.model != attempt.line.model:
            body = with_model(body, attempt.line.model, attempt.model)
        async with (
            endpoint_of(gateway, attempt, endpoints) as endpoint,
            aclosing(serve(gateway, context, endpoint, body)) as parts,
        ):
            async for _ in parts:
                pass

    return run


def with_model(body: bytes, line: str, model: str) -> bytes:
    """Replace the names in a body: those of its line by those of `model`. An invalid body is left to its parser."""
    try:
        fields = _FIELDS.decode(body)
    except NOT_JSON:
        return body
    name, keeps, _ = model.partition(ADAPTER)
    if ADAPTER in line and not keeps:  # the new name includes the adapter
        fields = {field: value for field, value in fields.items() if field not in ADAPTER_FIELDS}
    return msgspec.json.encode({**fields, "model": name})


def batch_worker(gateway: Gateway) -> BatchWorker:
    """Create the worker for a gateway's batches, without starting it."""
    services = gateway.services
    worker = BatchWorker(
        services.batches.store,
        line_runner(gateway, ENDPOINTS),
        services.batches.read_line,
        services.line_rooms,
        lambda key, team: services.keyring().by_id(key, team),  # the keys as they are then
        is_open=lambda: gateway.phase == "ready" and not services.reserve.is_short,  # answers need disk space
        observe=lambda made, ratio: services.batch_forecasts.labels(made).observe(ratio),
        taken_over=services.batches.look,
    )
    services.batches.set_worker(worker.wake, worker.forecast)
    resolve_names(gateway)
    return worker


def resolve_names(gateway: Gateway) -> None:
    """Make new batches keep the current meaning of their names."""
    services = gateway.services

    async def resolve(batch: BatchRecord, names: Sequence[str]) -> Mapping[str, str]:
        try:
            return services.line_rooms.pin(names, services.keyring().by_id(batch.key, batch.team))
        except RoundhouseError:  # the worker cancels a batch whose key has no rights
            return {}

    services.batches.creator.resolve = resolve


def callback_deliverer(gateway: Gateway, worker: BatchWorker) -> CallbackDeliverer:
    """Create the deliverer for callbacks of a gateway's batches, without starting it."""
    callbacks = gateway.services.batches.callbacks
    deliverer = CallbackDeliverer(
        gateway.services.batches.store, CallbackSender(callbacks.addresses), lambda: worker.epoch
    )
    callbacks.wake = deliverer.wake
    return deliverer


# --- recordings ------------------------------------------------------------------------------------------------------
FIELD = "file_id"


class _Body(msgspec.Struct):
    file_id: object = None


@asynccontextmanager
async def endpoint_of(
    gateway: Gateway, attempt: LineAttempt, endpoints: Mapping[str, Endpoint]
) -> AsyncIterator[Endpoint]:
    """The endpoint of a line, with its recording available until the context ends.

    A recording that is missing or too large is an error of the request, which the endpoint raises.
    """
    url, settings = attempt.batch.endpoint, gateway.services.settings
    if url not in TASKS:
        yield endpoints[url]
        return
    async with AsyncExitStack() as stack:
        try:
            path, fault = await _recording(gateway, attempt, stack), None
        except RoundhouseError as error:
            path, fault = "", error

        def recording(_: object) -> str:
            if fault is not None:
                raise fault
            return path

        yield json_endpoint(url, recording, settings.max_audio_seconds, FIELD)


async def _recording(gateway: Gateway, attempt: LineAttempt, stack: AsyncExitStack) -> str:
    """The path of a line's recording.

    Raises BadRequest, NotFound (also for another team's file), TooLarge, Unavailable, QueueFull.
    """
    services, team = gateway.services, attempt.batch.team
    try:
        file_id = msgspec.json.decode(attempt.body, type=_Body).file_id
    except NOT_JSON:
        return ""  # the endpoint reports the fault
    if not isinstance(file_id, str):
        raise BadRequest(f"Name an uploaded file of the purpose user_data in '{FIELD}'.", param=FIELD)
    file = await services.batches.files.get(team, file_id, FIELD)
    if file.size > services.settings.max_audio:
        raise too_large_error(services.settings.max_audio)
    try:
        return str(await stack.enter_async_context(services.batches.files.local_path(file_id)))
    except FileNotFoundError:  # deleted meanwhile
        raise missing_error(file_id, FIELD) from None
