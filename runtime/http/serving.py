"""The way of a request from its body to its answer, with its one record. It sees no HTTP object."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial

import msgspec

from console.texts import Transcript
from models.messages import Event, ResponseStart
from registry.errors import EngineFailed, LimitExceeded, RoundhouseError
from registry.names import DEFAULT_TEAM
from registry.recipes.definition import Task
from runtime.gateway.backend import Call, Lease, LoadPending, LoadProgress, Target
from runtime.gateway.charging.demand import pairs_of
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.gateway.recorder import DISCONNECTS, Recorder
from runtime.http import errors as http_errors
from runtime.http import hints
from runtime.http.attempts.retries import attempts
from runtime.http.bodies import check_counts
from runtime.http.dialect import (
    EVENT_STREAM,
    JSON,
    Endpoint,
    Head,
    ParsedRequest,
    Part,
    Parts,
    last_event_start,
    warning,
)
from runtime.http.errors import Dialect
from runtime.http.limit_headers import limit_headers
from runtime.http.routing.model_used import with_model_used

log = logging.getLogger("roundhouse.http")
AT_ONCE = 4
"""Calls of one request that are in the engine at a time."""
COMMENT_SECONDS = 0.5


async def serve(
    gateway: Gateway, context: RequestContext, endpoint: Endpoint, body: bytes, query: Mapping[str, str] | None = None
) -> Parts:
    """The answer to a body. Raises nothing: an error is an answer too, or the last event of a stream."""
    with gateway.record(context, endpoint.path) as recorder:
        try:
            if gateway.console.texts.is_enabled(context.caller.team):
                recorder.texts = Transcript(body)
            recorder.context, body = hints.read(recorder.context, endpoint.path, body)
            parsed = endpoint.parse(body, query or {})
        except RoundhouseError as error:
            recorder.failed(error)
            for part in refusal(error, endpoint.error_dialect(body)):
                yield part
            return
        async with aclosing(serve_parsed(gateway, recorder, parsed)) as parts:
            async for part in parts:
                yield part


async def serve_parsed(gateway: Gateway, recorder: Recorder, parsed: ParsedRequest) -> Parts:
    """The answer to what was understood; `serve` with its first step done."""
    opened: Head | None = None
    try:
        if parsed.model_ref.task in (Task.EMBED, Task.RERANK):
            check_counts(parsed.calls(None), gateway.settings.bounds)
        target = recorder.target = await gateway.choose(
            parsed.model_ref, recorder.endpoint, parsed.calls, recorder.context
        )
        gateway.admit(recorder, target, parsed.calls)
        parts = attempts(
            gateway,
            recorder,
            target,
            () if target.routed is None else target.routed.decision.fallbacks,
            lambda name: gateway.resolve(
                replace(parsed.model_ref, name=name, adapter=None, written_by=DEFAULT_TEAM), recorder.context.caller
            ),
            lambda found, noted: _parts(gateway, noted, parsed, found),
        )
        if target.routed is not None:
            parts = with_model_used(recorder, parts)
        load_progress = partial(gateway.backend(target).load_progress, target)
        if parsed.stream and recorder.context.preference.progress and load_progress() is not None:
            headers = {**recorder.warnings(), **limit_headers(gateway.levels(recorder), parsed.dialect)}
            parts = with_progress(target.model, load_progress, parts, headers, parsed.dialect)
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Head):
                    opened = part
                if recorder.texts is not None:
                    _keep(recorder.texts, part)
                yield part
    except DISCONNECTS:
        recorder.client_disconnected()
        raise
    except LoadPending as later:
        recorder.failed(later)
        for part in accepted(later) if opened is None else []:
            yield part
    except Exception as error:
        recorder.failed(error)
        for part in refusal(_client_error(error, parsed, recorder), parsed.dialect, opened):
            yield part
    finally:
        if recorder.texts is not None:
            recorder.texts.end()


def _keep(texts: Transcript, part: Part) -> None:
    """A part of an answer, for a team that has them kept. Errors are none: their code is told anyway."""
    if not isinstance(part, Head):
        texts.feed(part)
    elif part.status < 400:
        texts.begin(part.content_type)


def _client_error(error: Exception, parsed: ParsedRequest, recorder: Recorder) -> RoundhouseError:
    """The error as this client may read it."""
    if not isinstance(error, RoundhouseError):
        log.error("unmapped error in an endpoint", exc_info=error, extra={"request_id": recorder.context.id})
        return EngineFailed("The server failed on this request.", code="internal_error")
    error.param = parsed.renamed.get(error.param or "", error.param)
    return error


async def _parts(gateway: Gateway, recorder: Recorder, parsed: ParsedRequest, target: Target) -> Parts:
    """What makes an answer whole waits until the ledger, if there is one, holds its end: nobody has what it lacks."""
    gateway.admit(recorder, target, parsed.calls)  # a further attempt: the first has been let in
    warned: dict[str, str] = {}
    events, head, is_whole, held = _events(gateway, recorder, parsed, target, warned), None, False, b""
    async with aclosing(events), aclosing(parsed.render(target, events)) as parts:
        async for part in parts:
            if isinstance(part, Head):
                head = part
                recorder.answered(part.status, is_stream=part.is_stream)
                is_whole = "content-length" in part.headers and not recorder.is_fork
                if is_whole:  # to send it is the client's time
                    recorder.done()
                    await gateway.kept()
                limits = limit_headers(gateway.levels(recorder), parsed.dialect)
                yield Head(part.status, part.content_type, {**warned, **part.headers, **recorder.headers(), **limits})
                continue
            assert head is not None
            if recorder.entry is None or is_whole:
                yield part
                if head.is_stream and last_event_start(part) < len(part):
                    recorder.sent()
                continue
            end = last_event_start(part) if head.is_stream and not held else 0
            if end:
                yield part[:end]
            held += part[end:]
    if head is None:
        raise EngineFailed("The engine ended without an answer.")
    recorder.done()
    await gateway.kept()
    if held:
        yield held


async def _events(
    gateway: Gateway, recorder: Recorder, parsed: ParsedRequest, target: Target, warned: dict[str, str]
) -> AsyncGenerator[Event, None]:
    """A turn on the target, held until its last event was read. warned: is given the warnings among the events."""
    async with gateway.lease(recorder, target) as lease:
        calls = parsed.calls(lease.context_length)
        recorder.pairs = pairs_of(calls)
        if len(calls) == 1:
            async for event in lease.run(calls[0]):
                if isinstance(event, ResponseStart):
                    warned |= warning(event)
                yield event
            return
        for events in await _together(lease, calls):
            for event in events:
                if isinstance(event, ResponseStart):
                    warned |= warning(event)
                yield event


async def _together(lease: Lease, calls: Sequence[Call]) -> list[list[Event]]:
    """The events of several calls, in the calls' order. The first error ends the others."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(call: Call) -> list[Event]:
        async with turn:
            return [event async for event in lease.run(call)]

    with first_error():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in calls]
    return [task.result() for task in tasks]


@contextmanager
def first_error() -> Iterator[None]:
    """Of a task group's errors the first one, as if there were no group."""
    try:
        yield
    except ExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None


# --- answers that no engine gave -------------------------------------------------------------------------------------
def refusal(error: RoundhouseError, dialect: Dialect, opened: Head | None = None) -> list[Part]:
    """An error as an answer; in an answer that has begun, as a stream's last event."""
    if opened is not None:
        return [http_errors.sse(error, dialect)] if opened.is_stream else []
    data = http_errors.encode(error, dialect)
    headers = {"content-length": str(len(data)), **http_errors.headers(error)}
    if isinstance(error, LimitExceeded):
        headers |= limit_headers(error.levels, dialect)
    return [Head(http_errors.status(error, dialect), JSON, headers), data]


def accepted(later: LoadPending) -> list[Part]:
    """202: the load has begun; where to look, and when to come back."""
    where, seconds = f"/v1/models/{later.model}", math.ceil(later.expected_seconds)
    body = {"object": "model.load", "model": later.model, "status_url": where, "expected_seconds": seconds}
    headers = {"Location": where, "Retry-After": str(seconds), "Preference-Applied": "respond-async"}
    return [Head(202, JSON, headers), msgspec.json.encode(body)]


async def with_progress(
    model: str,
    load_progress: Callable[[], LoadProgress | None],
    parts: Parts,
    headers: Mapping[str, str],
    dialect: Dialect = Dialect.OPENAI,
) -> Parts:
    """The same answer as a stream that is opened at once: until it begins, comments tell how far the model is.

    A comment is a line that clients skip. The status line has left, so an error's body becomes an event.
    """
    yield Head(200, f"{EVENT_STREAM}; charset=utf-8", {"cache-control": "no-cache", **headers})
    first = asyncio.ensure_future(anext(parts, None))
    try:
        while not first.done():
            now = load_progress() or LoadProgress("ready", 1.0)
            yield f": {model} {now.phase} {now.fraction:.0%}\n\n".encode()
            await asyncio.wait({first}, timeout=COMMENT_SECONDS)
    finally:
        if not first.done():
            first.cancel()
            await asyncio.wait({first})
    head = first.result()
    is_error = isinstance(head, Head) and head.status >= 400
    async with aclosing(parts):
        async for part in parts:
            if isinstance(part, bytes):
                yield http_errors.event(part, dialect) if is_error else part
