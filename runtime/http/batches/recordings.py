"""Batch lines with recordings: `file_id` in the body names an uploaded file, in place of the form's file."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from batches.intake.stored_files import missing_error
from batches.work.running import LineAttempt
from registry.base.json import NOT_JSON
from registry.errors import BadRequest, RoundhouseError
from runtime.gateway.core import Gateway
from runtime.http.audio.endpoints import TASKS, json_endpoint
from runtime.http.bodies import too_large_error
from runtime.http.dialect import Endpoint

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
    opened = services.batches.files.content().local_path(file_id)
    try:
        path = await asyncio.to_thread(opened.__enter__)
    except FileNotFoundError:  # deleted meanwhile
        raise missing_error(file_id, FIELD) from None
    stack.push_async_callback(asyncio.to_thread, opened.__exit__, None, None, None)
    return str(path)
