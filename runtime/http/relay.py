"""From a slot's events to HTTP: what every endpoint shares once it knows the model.

Headers are held until the first frame of the answer, so that an error before it keeps its status, and Server-Timing
can tell how long the first byte took.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Send

from models.messages import (
    Chunk,
    EmbedResult,
    Event,
    Finished,
    Progress,
    Request,
    RerankResult,
    Segment,
    Started,
    TranscriptInfo,
    Usage,
)
from registry.errors import RoundhouseError
from runtime.gateway.core import Chosen, Gateway
from runtime.gateway.prefer import NotYet
from runtime.http import errors as http_errors
from runtime.http.errors import Dialect
from runtime.scheduling.lease import Lease
from runtime.slots import frames
from runtime.slots.link import Call


@dataclass(slots=True)
class Served:
    """One request from its arrival to its end; `Answer` keeps it for headers and metrics."""

    gateway: Gateway
    chosen: Chosen
    endpoint: str
    began: float = field(default_factory=time.perf_counter)
    lease: Lease | None = None
    first: float | None = None
    usage: Usage | None = None
    outcome: str = "cancelled"
    load_seconds: float = 0.0

    def timing(self) -> str:
        """Server-Timing in milliseconds: waiting for a turn, of it waiting for a load, and until the first byte."""
        queue = self.lease.queued_seconds if self.lease else 0.0
        load = min(self.load_seconds, queue)
        first = (self.first or time.perf_counter()) - self.began
        return f"queue;dur={(queue - load) * 1e3:.2f}, load;dur={load * 1e3:.2f}, first;dur={first * 1e3:.2f}"

    def headers(self) -> dict[str, str]:
        return {**self.chosen.headers(), "Server-Timing": self.timing()}

    def note_first(self) -> None:
        if self.first is None:
            self.first = time.perf_counter()

    def close(self) -> None:
        """Count the request, whatever its end was."""
        metrics, model = self.gateway.metrics, self.chosen.entry.id
        now = time.perf_counter()
        metrics.requests.labels(model, self.endpoint, self.outcome).inc()
        metrics.total.labels(model).observe(now - self.began)
        if self.first is not None:
            metrics.first.labels(model).observe(self.first - self.began)
        usage = self.usage
        if usage is None:
            return
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
        ):
            if count:
                metrics.tokens.labels(model, kind).inc(count)
        if usage.completion_tokens > 1 and self.first is not None:
            metrics.per_token.labels(model).observe((now - self.first) / (usage.completion_tokens - 1))
        if usage.audio_seconds:
            metrics.audio.labels(model).inc(usage.audio_seconds)
        if usage.batch:
            metrics.batch.labels(model).observe(usage.batch)
        if self.chosen.adapter_name:
            metrics.adapter_requests.labels(model, self.chosen.adapter_name).inc()


@asynccontextmanager
async def serving(
    gateway: Gateway, chosen: Chosen, endpoint: str, make: Callable[[], Request]
) -> AsyncIterator[tuple[Served, Call]]:
    """Lease, call, and at the end release and count. `make` builds the engine's request once a turn has come."""
    served = Served(gateway, chosen, endpoint)
    waited_for_load = chosen.entry.link is None
    try:
        async with await gateway.lease(chosen) as lease:
            served.lease = lease
            if waited_for_load:
                served.load_seconds = lease.queued_seconds
            request = make()
            call = lease.link.call(lambda uid: frames.Call(uid, request))
            try:
                async with call:
                    _watch_drain(lease, call)
                    yield served, call
            finally:
                served.usage = served.usage or call.usage
        served.outcome = "ok" if served.outcome == "cancelled" else served.outcome
    except RoundhouseError as error:
        served.outcome = str(error.status)
        raise
    except NotYet:
        served.outcome = "202"
        raise
    finally:
        served.close()


def _watch_drain(lease: Lease, call: Call) -> None:
    """A drain deadline ends the call with its error."""
    aborted = lease.ticket.aborted
    if aborted is not None:
        aborted.add_done_callback(
            lambda done: None if done.cancelled() else call.put(frames.Failed.of(call.uid, done.result()))
        )


async def result(served: Served, call: Call) -> EmbedResult | RerankResult:
    """The one result of an embedding or rerank call."""
    found: EmbedResult | RerankResult | None = None
    async with aclosing(_aiter(call)) as events:
        async for event in events:
            if isinstance(event, EmbedResult | RerankResult):
                found = event
                served.note_first()
            elif isinstance(event, Finished):
                served.usage = event.usage
    assert found is not None, "an engine ended a call without a result"
    return found


async def transcript(served: Served, call: Call) -> AsyncIterator[TranscriptInfo | Segment]:
    """Transcription events as they come."""
    async with aclosing(_aiter(call)) as events:
        async for event in events:
            if isinstance(event, TranscriptInfo | Segment):
                served.note_first()
                yield event
            elif isinstance(event, Finished):
                served.usage = event.usage


async def answer(served: Served, call: Call) -> AsyncGenerator[Started | Chunk, None]:
    """The chat engine's HTTP answer as it comes, for dialects that write it anew."""
    async with aclosing(_aiter(call)) as events:
        async for event in events:
            if isinstance(event, Started):
                yield event
            elif isinstance(event, Chunk):
                served.note_first()
                yield event
            elif isinstance(event, Finished):
                served.usage = event.usage


async def relay(served: Served, call: Call, send: Send, dialect: Dialect) -> None:
    """Pass the chat engine's HTTP answer on, chunk by chunk; an error after the first chunk is the last event.

    vLLM writes most errors in OpenAI's shape, on Anthropic's paths too: there they are brought into Anthropic's. It
    repeats in them what the client sent, of any length: that is cut.
    """
    started: Started | None = None
    open_ = False
    refusal = bytearray()
    try:
        async with aclosing(_aiter(call)) as events:
            async for event in events:
                if isinstance(event, Chunk) and started is not None:
                    if started.status >= 400:
                        refusal += event.data
                        continue
                    if not open_:
                        served.note_first()
                        await start(send, started, served)
                        open_ = True
                    await send({"type": "http.response.body", "body": event.data, "more_body": True})
                elif isinstance(event, Started):
                    started = event
                elif isinstance(event, Finished):
                    served.usage = event.usage
    except RoundhouseError as error:
        if not open_:
            raise
        served.outcome = error.code
        if started is not None and started.content_type.startswith("text/event-stream"):
            await send({"type": "http.response.body", "body": http_errors.sse(error, dialect), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return
    if not open_ and started is not None:
        await start(send, started, served)
    if refusal and started is not None:
        adopted = http_errors.adopted(started.status, bytes(refusal), dialect)
        await send({"type": "http.response.body", "body": adopted, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    if started is not None:
        served.outcome = "ok" if started.status < 400 else str(started.status)


async def start(send: Send, started: Started, served: Served) -> None:
    """The status line and headers of a chat engine's answer."""
    headers = {"content-type": started.content_type, **served.headers()}
    if started.content_type.startswith("text/event-stream"):
        headers["cache-control"] = "no-cache"
        headers["x-accel-buffering"] = "no"
    await send(
        {
            "type": "http.response.start",
            "status": started.status,
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()],
        }
    )


def _aiter(call: Call) -> Any:
    """The call's events without load progress, as a closable async generator."""

    async def events() -> AsyncIterator[Event]:
        async for event in call.events():
            if not isinstance(event, Progress):
                yield event

    return events()
