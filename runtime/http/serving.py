"""From a request's body to its answer and its one record, without HTTP objects.

serve ─ parse ─ choose ─ admit ─ _parts ─ render ─ _events ─ lease ─ the engine's events
           for targets with fall-backs or retries, `attempts` runs between choose and _parts
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from urllib.parse import urlencode

import msgspec

from console.texts import Transcript
from models.messages import EmbedResult, Event, ResponseStart
from models.tasks import TASKS, Call, task_of
from registry.errors import BadRequest, EngineFailed, LimitExceeded, NodeFailed, RoundhouseError
from routing.providers.faults import bad_answer
from runtime.gateway.backend import LoadProgress, RelayedAnswer
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.gateway.request import DISCONNECTS, ClientMessage, Request
from runtime.gateway.target import Lease, LoadPending, Target
from runtime.http import errors as http_errors
from runtime.http import hints
from runtime.http.attempts import attempts
from runtime.http.bodies import no_effect_error, parse_object, unreadable_error, warn_of_fields
from runtime.http.dialect import (
    EVENT_STREAM,
    JSON,
    WARNING,
    Endpoint,
    Head,
    ParsedRequest,
    Part,
    Parts,
    last_event_start,
    warning,
)
from runtime.http.errors import Dialect, limit_headers
from runtime.http.routing.model_used import with_model_used

log = logging.getLogger("roundhouse.http")
AT_ONCE = 4
"""Most calls of one request in the engine at a time."""
COMMENT_SECONDS = 0.5
MAX_WHOLE = 4 * 2**20
"""Bytes of another server's answer that are read before any is forwarded."""


def serve(
    gateway: Gateway, context: RequestContext, endpoint: Endpoint, body: bytes, query: Mapping[str, str] | None = None
) -> Parts:
    """Answer a body. Never raises: errors are answers or last events."""

    def parse(request: Request) -> ParsedRequest:
        gateway.start_transcript(request, body)
        request.message = ClientMessage(urlencode(query) if query else "", body)
        if endpoint.parse_object is None:
            request.context, rest = hints.read(request.context, endpoint.path, body)
            return endpoint.parse(rest, query or {})
        data = parse_object(body)
        request.context = hints.take(request.context, endpoint.path, data, hints.text_size(body))
        return endpoint.parse_object(data)

    record = partial(gateway.record, context, endpoint.path)
    return _answer(gateway, record, parse, lambda: endpoint.error_dialect(body))


def serve_parsed(gateway: Gateway, request: Request, parsed: ParsedRequest) -> Parts:
    """Answer a parsed request, within `Gateway.record`."""
    return _answer(gateway, lambda: nullcontext(request), lambda _: parsed, lambda: parsed.dialect)


async def _answer(
    gateway: Gateway,
    record: Callable[[], AbstractContextManager[Request]],
    parse: Callable[[Request], ParsedRequest],
    dialect_before: Callable[[], Dialect],
) -> Parts:
    """record: called once the parts are read. dialect_before: of errors until the body is parsed."""
    with record() as request:
        opened: Head | None = None
        try:
            parsed = parse(request)
        except (RoundhouseError, RecursionError) as raised:
            error = raised if isinstance(raised, RoundhouseError) else unreadable_error(raised)
            refused = refusal(error, dialect_before())
            _answer_line(request.context, refused)
            request.failed(error, _status(refused))
            for part in refused:
                yield part
            return
        try:
            parts = await _begin(gateway, request, parsed)
            async with aclosing(parts):
                async for part in parts:
                    if isinstance(part, Head):
                        opened = part
                    if request.transcript is not None and not request.attempt.is_relayed:
                        _store(request.transcript, part)
                    yield part
        except DISCONNECTS:
            request.client_disconnected()
            raise
        except LoadPending as pending:
            request.failed(pending)
            for part in accepted(pending) if opened is None else []:
                yield part
        except Exception as raised:
            # msgspec reads values of more levels than it writes
            failure = unreadable_error(raised) if isinstance(raised, RecursionError) else raised
            refused = refusal(_client_error(failure, parsed, request), parsed.dialect, opened)
            _answer_line(request.context, refused)
            request.failed(failure, _status(refused))
            for part in refused:
                yield part
        finally:
            if request.transcript is not None:
                request.transcript.end()


async def _begin(gateway: Gateway, request: Request, parsed: ParsedRequest) -> Parts:
    """Choose the target, admit the request, and return its parts without starting them."""
    request.understood(parsed.model_ref, parsed.calls)
    kind = TASKS[parsed.model_ref.task]
    if kind.check is not None:
        kind.check(request.calls, gateway.services.settings.bounds)
    target = await gateway.choose(request)
    if parsed.left_out and (request.context.preference.strict or target.is_strict):
        raise no_effect_error(parsed.left_out[0])
    await gateway.admit(request)
    is_line = request.context.line is not None
    if is_line and parsed.stream:
        raise BadRequest("A line of a batch has no stream: leave 'stream' out.", param="stream")
    fallbacks = _fallbacks(target)
    if fallbacks or gateway.backend_of(target).retry is not None:
        parts = attempts(gateway, request, fallbacks, partial(_attempt, gateway, request, parsed))
    else:
        parts = _attempt(gateway, request, parsed)
    if is_line:
        return parts
    if target.routed is not None:
        parts = with_model_used(request, parts)
    load_progress = partial(gateway.backend_of(target).load_progress, target)
    if parsed.stream and request.context.preference.progress and load_progress() is not None:
        # its limit on silence does not apply while comments come
        request.context = replace(request.context, first_by=None)
        headers = {
            **warning(warn_of_fields(parsed.left_out)),
            **request.warnings(),
            **limit_headers(gateway.levels(request), parsed.dialect),
        }
        parts = with_progress(target.model, load_progress, parts, headers, parsed.dialect)
    return parts


def _fallbacks(target: Target) -> Sequence[str]:
    """The fall-backs of the router that chose a target."""
    return () if target.routed is None else target.routed.decision.fallbacks


def _store(transcript: Transcript, part: Part) -> None:
    """Add a part of an answer to the transcript. Errors are skipped, since the record has their code."""
    if not isinstance(part, Head):
        transcript.feed(part)
    elif part.status < 400:
        transcript.begin(part.content_type)


def _client_error(error: Exception, parsed: ParsedRequest, request: Request) -> RoundhouseError:
    """The error in the form that this client may see."""
    if not isinstance(error, RoundhouseError):
        log.error("unmapped error in an endpoint", exc_info=error, extra={"request_id": request.context.id})
        return EngineFailed("The server failed on this request.", code="internal_error")
    if error.param is not None and (name := parsed.renamed.get(error.param)) is not None:
        error.message, error.param = error.message.replace(f"'{error.param}'", f"'{name}'"), name
    return error


def _attempt(gateway: Gateway, request: Request, parsed: ParsedRequest) -> Parts:
    """One attempt at the request's current target, here or at another server."""
    if gateway.is_relayed(request.chosen):
        return _relayed(gateway, request)
    answer = _parts if request.context.line is None else _line_parts
    return answer(gateway, request, parsed)


async def _parts(gateway: Gateway, request: Request, parsed: ParsedRequest) -> Parts:
    """One attempt's answer. If teams are billed, the ledger commits its end before the last part is sent."""
    if request.tried:  # limits admit each attempt by itself
        await gateway.admit(request)
    warned: dict[str, str] = {}
    head, is_whole, rest = None, False, b""
    events = _events(gateway, request, warned)
    async with aclosing(events), aclosing(_rendered(parsed, request.chosen, events)) as parts:
        async for part in parts:
            if isinstance(part, Head):
                head = part
                texts = (warn_of_fields(parsed.left_out), part.headers.get(WARNING, ""), warned.get(WARNING, ""))
                warning_header = warning(*texts)
                request.answered(
                    part.status, is_stream=part.is_stream, warning=warning_header.get(WARNING, ""), code=part.code
                )
                is_whole = "content-length" in part.headers
                if is_whole:  # sending takes the client's time, not ours
                    request.done()
                    if request.attempt.is_end_awaited:
                        await gateway.flush()
                limits = limit_headers(gateway.levels(request), parsed.dialect)
                headers = {**part.headers, **warning_header, **request.headers(), **limits}
                yield Head(part.status, part.content_type, headers)
                continue
            assert head is not None
            if not request.attempt.is_end_awaited or is_whole:
                yield part
                if head.is_stream and last_event_start(part) < len(part):
                    request.sent()
                continue
            end = last_event_start(part) if head.is_stream and not rest else 0
            if end:
                yield part[:end]
            rest += part[end:]
    if head is None:
        raise EngineFailed("The engine ended without an answer.")
    request.done()
    if request.attempt.is_end_awaited:
        await gateway.flush()
    if rest:
        yield rest


async def _relayed(gateway: Gateway, request: Request) -> Parts:
    """One attempt at another server of the fleet, whose answer is forwarded unchanged."""
    try:
        async with gateway.relay(request) as answer:
            head, first = await beginning_of(answer)
            request.relayed(head.status, is_stream=head.is_stream)
            yield head
            if first:
                yield first
            while data := await answer.read():
                yield data
    except NodeFailed:
        gateway.refuse_if_stopping()
        raise


async def beginning_of(answer: RelayedAnswer) -> tuple[Head, bytes]:
    """Return the head of another server's answer, and all of an answer that is no stream.

    Read before anything is sent to the client, so that it can still be retried elsewhere. Raises NodeFailed.
    """
    headers = dict(answer.headers)
    head = Head(answer.status, headers.pop("content-type", ""), headers, is_relayed=True)
    first = b""
    while not head.is_stream and len(first) <= MAX_WHOLE and (data := await answer.read()):
        first += data
    return head, first


async def _line_parts(gateway: Gateway, request: Request, parsed: ParsedRequest) -> Parts:
    """One attempt at a batch line. The ledger commits its end together with the answer."""
    if request.tried:
        await gateway.admit(request)
    target = request.chosen
    head, body = None, bytearray()
    events = _events(gateway, request, {})
    rendered = _rendered(parsed, target, events)
    if target.routed is not None:
        rendered = with_model_used(request, rendered)
    async with aclosing(events), aclosing(rendered) as parts:
        async for part in parts:
            if isinstance(part, Head):
                head = part
                request.answered(part.status, code=part.code)
            else:
                body += part
    if head is None:
        raise EngineFailed("The engine ended without an answer.")
    if head.status >= 500 or head.status == 429:  # the line will be retried
        raise EngineFailed(f"'{target.model}' answered with status {head.status}.")
    _answer_line(request.context, [head, bytes(body)])
    request.done()
    await gateway.flush()
    yield head
    yield bytes(body)


def _rendered(parsed: ParsedRequest, target: Target, events: AsyncIterator[Event]) -> Parts:
    """Return the answer in its dialect. If a provider's answer cannot be translated, the error names the provider."""
    parts = parsed.render(target, events)
    return _blamed(target.provider, parts) if target.provider else parts


async def _blamed(provider: str, parts: Parts) -> Parts:
    async with aclosing(parts):
        try:
            async for part in parts:
                yield part
        except EngineFailed as error:
            raise bad_answer(provider, f"gave no valid answer: {error.message.rstrip('.')}") from error


def _answer_line(context: RequestContext, parts: Sequence[Part]) -> None:
    """Hand a complete answer to its batch line, before the request's end is recorded."""
    match parts:
        case [Head() as head, bytes() as body] if context.line is not None:
            retry_after = head.headers.get("Retry-After", "")
            context.line.answer(head.status, body, float(retry_after) if retry_after.isdecimal() else None)


async def _events(gateway: Gateway, request: Request, warned: dict[str, str]) -> AsyncGenerator[Event, None]:
    """Events of a turn on the target. warned: receives their warnings."""
    async with gateway.lease(request) as lease:
        calls = request.make_calls(lease.context_length)
        request.attempt.pairs = sum(task_of(call).pairs(call) for call in calls)
        if len(calls) == 1:
            async for event in lease.run(calls[0]):
                if isinstance(event, ResponseStart | EmbedResult):
                    warned |= warning(event.warning)
                yield event
            return
        for events in await _together(lease, calls):
            for event in events:
                if isinstance(event, ResponseStart):
                    warned |= warning(event.warning)
                yield event


async def _together(lease: Lease, calls: Sequence[Call]) -> list[list[Event]]:
    """Events of several calls, in the order of the calls. The first error cancels the others."""
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
    """Raise the first error of a task group instead of the group."""
    try:
        yield
    except ExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None


# --- answers that no engine gave -------------------------------------------------------------------------------------
def refusal(error: RoundhouseError, dialect: Dialect, opened: Head | None = None) -> list[Part]:
    """An error as an answer or, if the answer has begun, as the stream's last event."""
    if opened is not None:
        return [http_errors.sse(error, dialect)] if opened.is_stream else []
    data = http_errors.encode(error, dialect)
    headers = {"content-length": str(len(data)), **http_errors.headers(error, dialect)}
    if isinstance(error, LimitExceeded):
        headers |= limit_headers(error.levels, dialect)
    return [Head(http_errors.status(error, dialect), JSON, headers), data]


def _status(refused: Sequence[Part]) -> int | None:
    """The status of a refusal; None within a stream."""
    return next((part.status for part in refused if isinstance(part, Head)), None)


def accepted(later: LoadPending) -> list[Part]:
    """The 202 answer for a load that has begun, with its status URL and Retry-After."""
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
    """Open a stream at once, with comments about the load until the answer begins.

    Clients skip comments. Since the status line has been sent, an error becomes an event.
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
