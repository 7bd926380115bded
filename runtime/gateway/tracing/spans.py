"""Builds a request's spans, one for itself and one per stage, from its record.

    chat starter-chat                      from its arrival to its end, with its target and usage
     ├ receive · load · queue · swap       stages that took no time are left out
     ├ prefill · decode
     └ provider                            replaces these: one per attempt, parent of the provider's own spans

Only the first span starts with the request, because its id is passed on. A request that is not sampled costs
nothing beyond that id.
"""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Span, SpanContext, SpanKind, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.status import Status, StatusCode

from registry.errors import RoundhouseError
from runtime.gateway.context import RequestContext
from runtime.gateway.record import End, RequestRecord
from runtime.gateway.request import DISCONNECTS

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
MAX_TOKENS = "gen_ai.request.max_tokens"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"

ERROR = "error.type"
METHOD, ROUTE, STATUS = "http.request.method", "http.route", "http.response.status_code"

REQUEST_ID = "roundhouse.request.id"
TEAM = "roundhouse.team"
CLASS = "roundhouse.class"
SOURCE = "roundhouse.source"
END = "roundhouse.end"
ADAPTER = "roundhouse.adapter"
ROUTER = "roundhouse.router"
ATTEMPT = "roundhouse.attempt"
AUDIO_SECONDS = "roundhouse.audio.seconds"
BATCH = "roundhouse.batch.size"
REPLICA = "roundhouse.replica"
REPLICA_REASON = "roundhouse.replica.reason"

SYSTEM = "roundhouse"
"""`gen_ai.provider.name` of this server's own models."""

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v2/chat": "chat",
    "/api/chat": "chat",
    "/v1/completions": "text_completion",
    "/api/generate": "text_completion",
    "/generate": "text_completion",
    "/generate_stream": "text_completion",
    "/": "text_completion",
    "/v1/embeddings": "embeddings",
    "/infinity/embeddings": "embeddings",
    "/v1/embed": "embeddings",
    "/v2/embed": "embeddings",
    "/embed": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
}
"""Operations named by the semantic conventions. Other paths use their last part, such as rerank."""


def operation(path: str) -> str:
    """Return the `gen_ai.operation.name` of an endpoint."""
    return OPERATIONS.get(path) or path.rsplit("/", 1)[-1]


PARENT = (b"traceparent", b"tracestate")
SHORTEST = 1e-6
"""Stages shorter than this, in seconds, are left out."""
CLOSE_WITHIN = 3.0
"""Seconds to wait for an unresponsive collector when the server stops."""
OUR_FAULTS = frozenset({End.FAILED, End.ENGINE_DIED, End.DEADLINE})
W3C = TraceContextTextMapPropagator()
IDS, SCOPE = RandomIdGenerator(), InstrumentationScope("roundhouse")
Attributes = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """`runtime.gateway.context.Trace`."""

    tracer: Tracer
    span: Span
    operation: str
    began: int
    """Nanoseconds since the epoch."""
    headers: Mapping[str, str]

    @contextmanager
    def calling(self, provider: str, model: str) -> Iterator[Mapping[str, str]]:
        attributes: Attributes = {
            OPERATION: self.operation, PROVIDER: provider, REQUEST_MODEL: model,
        }  # fmt: skip
        span = self.tracer.start_span("provider", set_span_in_context(self.span), SpanKind.CLIENT, attributes)
        try:
            yield headers_of(span)
        except DISCONNECTS:
            raise
        except Exception as error:  # its text may come from the provider and contain parts of the prompt
            word = (error.code if isinstance(error, RoundhouseError) else None) or type(error).__name__
            span.set_attribute(ERROR, word)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            span.end()


class Spans:
    """Creates and exports spans, as a sink of request records."""

    def __init__(self, provider: TracerProvider, *processors: SpanProcessor) -> None:
        """processors: receive every span. They are added to the provider."""
        self._provider, self._processors = provider, processors
        for processor in processors:
            provider.add_span_processor(processor)
        self._tracer = provider.get_tracer(SCOPE.name)

    def begin(self, context: RequestContext, endpoint: str) -> RequestTrace:
        """Continue the trace of the request's `traceparent`, or begin a new one."""
        carrier = {name.decode(): value.decode("latin-1") for name, value in context.headers if name in PARENT}
        began = time.time_ns() - max(0, time.monotonic_ns() - int(context.arrived * 1e9))
        name = operation(endpoint)
        attributes: Attributes = {OPERATION: name, ROUTE: endpoint}  # samplers may use them
        parent = W3C.extract(carrier, Context())
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=began)
        return RequestTrace(self._tracer, span, name, began, headers_of(span))

    def take(self, record: RequestRecord) -> None:
        trace = record.trace
        if not isinstance(trace, RequestTrace):
            return
        seconds, span = record.seconds, trace.span
        received_at = trace.began + _ns(seconds["receive"])
        end = received_at + _ns(seconds["total"])
        if span.is_recording():
            self._stage(trace, "receive", trace.began, received_at)
            for name, since, until in record.stages():
                if name != "provider":  # each attempt at a provider has its own span
                    self._stage(trace, name, received_at + _ns(since), received_at + _ns(until))
            if record.target is not None:
                span.update_name(f"{trace.operation} {record.target.model}")
            span.set_attributes(attributes_of(record))
            if record.end in OUR_FAULTS:
                span.set_status(Status(StatusCode.ERROR))
        span.end(end)

    def _stage(self, trace: RequestTrace, name: str, since: int, until: int) -> None:
        """Create a stage's span after its end, for a sixth of the cost of starting and ending one."""
        if until - since < _ns(SHORTEST):
            return
        above = trace.span.get_span_context()
        own = SpanContext(above.trace_id, IDS.generate_span_id(), False, above.trace_flags, above.trace_state)
        resource = self._provider.resource
        span = ReadableSpan(name, own, above, resource, start_time=since, end_time=until, instrumentation_scope=SCOPE)
        for processor in self._processors:
            processor.on_end(span)

    async def close(self) -> None:
        """Export the remaining spans, for a few seconds at most."""
        # in a thread that is not joined, because the SDK waits half a minute for an unreachable collector
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut, daemon=True, name="last-spans").start()
        try:
            async with asyncio.timeout(CLOSE_WITHIN):
                await done.wait()
        except TimeoutError:
            return


def attributes_of(record: RequestRecord) -> Attributes:
    """A request's attributes, which never contain its texts."""
    context, target, usage, seconds = record.context, record.target, record.usage, record.seconds
    attributes: dict[str, str | int | float | None] = {
        METHOD: "POST",
        STATUS: record.status,
        ERROR: record.code,
        END: record.end.value,
        REQUEST_ID: context.id,
        TEAM: context.caller.team,
        CLASS: context.service_class.label,
        SOURCE: context.source,
        ATTEMPT: record.attempt if record.attempt > 1 else None,
        MAX_TOKENS: context.hints.most_tokens,
        FIRST_CHUNK: seconds["receive"] + seconds["first"] if "first" in seconds else None,
        INPUT_TOKENS: usage.prompt_tokens or None,
        OUTPUT_TOKENS: usage.completion_tokens or None,
        CACHED_TOKENS: usage.cached_tokens or None,
        AUDIO_SECONDS: usage.audio_seconds or None,
        BATCH: usage.batch or None,
        REPLICA: record.replica or None,
        REPLICA_REASON: record.replica_reason,
    }
    if target is not None:
        attributes |= {
            PROVIDER: target.provider or SYSTEM,
            REQUEST_MODEL: target.recorded_name[:128],
            RESPONSE_MODEL: target.model_name,
            ADAPTER: target.label,
            ROUTER: None if target.routed is None else target.routed.router,
        }
    return {name: value for name, value in attributes.items() if value is not None}


def headers_of(span: Span) -> dict[str, str]:
    headers: dict[str, str] = {}
    W3C.inject(headers, set_span_in_context(span, Context()))
    return headers


def make_exporter(variables: Mapping[str, str]) -> Spans:
    """Create spans that a thread exports in batches, as the variables configure."""
    has_name = variables.get(OTEL_SERVICE_NAME) or f"{SERVICE_NAME}=" in variables.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(
        resource=Resource.create({} if has_name else {SERVICE_NAME: "roundhouse"}), shutdown_on_exit=False
    )
    return Spans(provider, BatchSpanProcessor(OTLPSpanExporter()))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
