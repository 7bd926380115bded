"""The spans of a request: their times, their parents, and the texts that they never contain."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind
from opentelemetry.trace.status import StatusCode

from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from registry.errors import EngineFailed
from routing.providers import upstream
from runtime.gateway.local.lease import LocalLease
from runtime.gateway.sinks.operators import RequestLog
from runtime.gateway.tracing.spans import Spans, operation
from runtime.http.guard.layers import layers
from runtime.http.routes import ENDPOINTS, OLLAMA_ENDPOINTS
from tenants.caller import SCOPES, Caller
from tenants.keys import secret
from tenants.keys.keyring import KeyEntry, Keyring
from tests.fakes import traces
from tests.fakes.provider import Play
from tests.unit.http.fakes import FakeGateway, application
from tests.unit.providers.rig import KEY, rigged_with

PATH, SECRET = "/v1/chat/completions", "the word nobody may see"
BODY = {"model": "chat", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 9}
REPORTED = [
    ResponseStart(status=200, content_type="application/json"),
    Chunk(data=json.dumps({"choices": [SECRET]}).encode()),
    ResponseEnd(usage=Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=4)),
]
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class ExportedSpans:
    """The exported spans, in the order of their ends."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler)
        self.tracing = Spans(provider, SimpleSpanProcessor(self._exporter))

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def __getitem__(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.all if span.name == name]
        return found


@contextmanager
def scripted(gateway: FakeGateway, *events: Any) -> Iterator[None]:
    gateway.links["chat"].script = lambda _: events
    yield


async def ask(gateway: FakeGateway, headers: dict[str, str | bytes] | None = None, **more: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(PATH, json=BODY | more, headers=headers)  # type: ignore[arg-type]


def numbers(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}-{span.context.span_id:016x}"


def reported(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_requests_line_in_the_log_names_its_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway = FakeGateway(tmp_path, tracing=ExportedSpans().tracing, sinks=[RequestLog()])
    caplog.set_level(logging.INFO, "roundhouse.requests")
    with scripted(gateway, *REPORTED):
        await ask(gateway, {"traceparent": f"00-{TRACE}-{CALLER}-01"})
    [line] = [vars(record) for record in caplog.records if record.message == "request ended"]
    assert line["trace_id"] == TRACE


async def test_a_request_is_a_span_that_contains_its_stages(tmp_path: Path) -> None:
    spans = ExportedSpans()
    gateway = FakeGateway(tmp_path, tracing=spans.tracing)
    with scripted(gateway, *REPORTED):
        assert (await ask(gateway, {"x-request-id": "mine-1"})).status_code == 200
    whole = spans["chat chat"]
    assert whole.kind is SpanKind.SERVER
    assert whole.parent is None
    reported_ = reported(whole)
    assert reported_.pop("gen_ai.response.time_to_first_chunk") > 0
    assert reported_ == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "roundhouse", "gen_ai.request.model": "chat",
        "gen_ai.response.model": "chat", "gen_ai.request.max_tokens": 9, "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3, "gen_ai.usage.cache_read.input_tokens": 4, "http.request.method": "POST",
        "http.route": PATH, "http.response.status_code": 200, "roundhouse.request.id": "mine-1",
        "roundhouse.team": "default", "roundhouse.class": "interactive", "roundhouse.source": "api",
        "roundhouse.end": "done",
    }  # fmt: skip
    stages = [span for span in spans.all if span is not whole]
    assert {span.name for span in stages} >= {"prefill", "decode"}
    assert whole.start_time is not None
    at = whole.start_time
    for span in sorted(stages, key=lambda span: span.start_time or 0):
        assert span.parent == whole.context
        assert at <= (span.start_time or 0) < (span.end_time or 0) <= (whole.end_time or 0)
        at = span.end_time or 0
    [record] = gateway.records.all
    length = ((whole.end_time or 0) - whole.start_time) / 1e9
    assert length == pytest.approx(record.seconds["receive"] + record.seconds["total"], abs=1e-6)


async def test_the_replica_that_answered_is_on_the_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalLease, "replica", 2)
    monkeypatch.setattr(LocalLease, "replica_reason", "adapter")
    spans = ExportedSpans()
    gateway = FakeGateway(tmp_path, tracing=spans.tracing)
    with scripted(gateway, *REPORTED):
        assert (await ask(gateway)).headers["x-roundhouse-replica"] == "2 adapter"
    attributes = reported(spans["chat chat"])
    assert (attributes["roundhouse.replica"], attributes["roundhouse.replica.reason"]) == (2, "adapter")


async def test_a_callers_trace_continues_in_the_engine(tmp_path: Path) -> None:
    spans = ExportedSpans()
    gateway = FakeGateway(tmp_path, tracing=spans.tracing)
    with scripted(gateway, *REPORTED):
        await ask(gateway, {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "a=b"})
    whole = spans["chat chat"]
    assert whole.parent is not None
    assert (f"{whole.context.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE, CALLER)
    [request] = gateway.links["chat"].requests
    assert request.trace == {"traceparent": f"00-{TRACE}-{whole.context.span_id:016x}-01", "tracestate": "a=b"}


@pytest.mark.parametrize("odd", ["", "x", f"00-{'0' * 32}-{CALLER}-01", f"00-{TRACE}-{CALLER}-01" * 50, "00-ü-1-1"])
async def test_an_invalid_traceparent_begins_a_new_trace(tmp_path: Path, odd: str) -> None:
    spans = ExportedSpans()
    gateway = FakeGateway(tmp_path, tracing=spans.tracing)
    with scripted(gateway, *REPORTED):
        answer = await ask(gateway, {"traceparent": odd.encode()})
    assert answer.status_code == 200
    assert spans["chat chat"].parent is None


async def test_a_request_that_is_not_sampled_has_no_stages(tmp_path: Path) -> None:
    spans = ExportedSpans(ALWAYS_OFF)
    gateway = FakeGateway(tmp_path, tracing=spans.tracing)
    with scripted(gateway, *REPORTED):
        await ask(gateway)
    assert spans.all == ()
    [request] = gateway.links["chat"].requests
    assert int(request.trace["traceparent"][-2:], 16) & 1 == 0


async def test_without_traces_nothing_is_passed_on(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path)
    with scripted(gateway, *REPORTED):
        await ask(gateway, {"traceparent": f"00-{TRACE}-{CALLER}-01"})
    [request] = gateway.links["chat"].requests
    assert request.trace == {}


async def test_a_clients_fault_is_no_error_of_the_span_and_ours_is(tmp_path: Path) -> None:
    spans = ExportedSpans()
    gateway = FakeGateway(tmp_path, tracing=spans.tracing)
    await ask(gateway, model="nobody")
    refused = spans["chat"]
    assert refused.status.status_code is StatusCode.UNSET
    assert reported(refused)["error.type"] == "model_not_found"
    assert "gen_ai.request.model" not in reported(refused)
    with scripted(gateway, EngineFailed("it broke over " + SECRET)):
        await ask(gateway)
    failed = spans["chat chat"]
    assert failed.status.status_code is StatusCode.ERROR
    assert reported(failed)["error.type"] == "engine_failed"
    assert all(SECRET not in span.to_json() for span in spans.all)


async def test_each_attempt_at_a_provider_is_a_span_that_the_provider_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_PROVIDER_KEY", KEY)
    monkeypatch.setattr(upstream, "FIRST_SECONDS", 0.001)
    spans = ExportedSpans()
    plays = [Play([json.dumps({"error": {"message": SECRET}}).encode()], status=503), traces.chat("big")]
    scripts: Any = {"there": (lambda seen: plays.pop(0), "openai", {"retries": 1})}
    async with rigged_with(tmp_path, scripts, spans.tracing) as rig:
        answer = await rig.chat()
        assert answer.status_code == 200, answer.text
        [record] = rig.gateway.records.all
        seen = [request.headers["traceparent"] for request in rig.fake.seen]
    attempts = [span for span in spans.all if span.name == "provider"]
    whole = spans["chat there/big"]
    assert [header[3:-3] for header in seen] == [numbers(span) for span in attempts]
    assert [span.parent for span in attempts] == [whole.context] * 2
    assert [span.kind for span in attempts] == [SpanKind.CLIENT] * 2
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR, StatusCode.UNSET]
    assert reported(whole)["gen_ai.provider.name"] == "there"
    assert reported(whole)["roundhouse.attempt"] == 2
    assert {span.name for span in spans.all} <= {"receive", "queue", "provider", "chat there/big"}
    assert all(SECRET not in span.to_json() and KEY not in span.to_json() for span in spans.all)
    causes = record.causes
    assert sum(causes.values()) == pytest.approx(record.seconds["total"])
    assert causes["provider"] > 0
    assert causes["queue"] > 0, "the pause between the attempts"
    assert causes["prefill"] == causes["decode"] == 0


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
async def test_a_key_is_on_no_span(tmp_path: Path, header: str) -> None:
    """In any header or other part of the request, whether the key is valid or refused."""
    key, wrong, pepper = secret.make(), secret.make(), b"p" * 64
    caller = Caller("search", key.id, frozenset(SCOPES))
    known = {key.id: KeyEntry(secret.digest(pepper, key.text), caller, None, False)}
    spans = ExportedSpans()
    gateway = FakeGateway(tmp_path, tracing=spans.tracing, keyring=Keyring(known, pepper, is_open=False))
    app = application(gateway, layers(gateway.settings))
    transport, template = httpx.ASGITransport(app=app), ("Bearer {}" if header == "authorization" else "{}")
    with scripted(gateway, *REPORTED):
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            statuses = []
            for sent in (key, wrong):
                headers = {header: template.format(sent.text), "cookie": f"k={sent.text}"}
                body = BODY | {"user": sent.text, "metadata": {"key": sent.text}}
                answer = await client.post(PATH, json=body, headers=headers, params={"api_key": sent.text})
                statuses.append(answer.status_code)
            gateway.links["chat"].script = lambda _: (EngineFailed("it broke over " + key.text),)
            answer = await client.post(PATH, json=BODY, headers={header: template.format(key.text)})
    assert [*statuses, answer.status_code] == [200, 401, 500]
    assert "roundhouse.team" in reported(spans.all[-1])
    for text in (key.text, wrong.text):
        parts = {text, text.rpartition("-")[2], text[12:40]}
        assert not [span.name for span in spans.all if any(part in span.to_json() for part in parts)]
    assert spans.all


def test_each_path_has_an_operation() -> None:
    found = {endpoint.path: operation(endpoint.path) for endpoint in (*ENDPOINTS.values(), *OLLAMA_ENDPOINTS)}
    assert all(found.values())
    assert (found["/v1/responses"], found["/rerank"]) == ("chat", "rerank")
