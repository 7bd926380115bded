"""Each request gets exactly one record at its end, with the tokens that the engine has counted until then."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from models.messages import Chunk, Event, ResponseEnd, ResponseStart, Usage
from registry.errors import BadRequest, EngineFailed, RoundhouseError, Unavailable
from runtime.gateway.context import Preference, RequestContext
from runtime.gateway.record import End, RequestRecord
from runtime.http.routes import ENDPOINTS
from runtime.residency.states import ModelState
from runtime.scheduling.queue import ModelQueue
from runtime.slots.link import SlotLink
from tests.eventually import PATIENCE
from tests.unit.http.answering import Answered, answer
from tests.unit.http.fakes import FakeGateway, Wire, application
from tests.unit.http.rerank.script import DOCUMENTS
from tests.unit.http.rerank.script import answer as rerank

PATH = "/v1/chat/completions"
BODY = {"model": "chat", "messages": [], "stream": True}
START = ResponseStart(status=200, content_type="text/event-stream")
CHUNK, END = (
    Chunk(data=b"data: {}\n\n"),
    ResponseEnd(usage=Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=4)),
)
DIED = Unavailable("The engine died while it was answering.", code="engine_died")


@pytest.fixture
async def gateway(tmp_path: Path) -> FakeGateway:
    gateway = FakeGateway(tmp_path)
    gateway.links["chat"].tokens = (7, 1, 4)
    return gateway


async def recorded(
    gateway: FakeGateway,
    *events: Event | RoundhouseError,
    body: dict[str, Any] = BODY,
    path: str = PATH,
    context: RequestContext | None = None,
) -> RequestRecord:
    """Return the only record of a request that the engine answers with `events`."""
    gateway.links["chat"].script = lambda _: events
    await answer(gateway.gateway, context or RequestContext("r-1"), ENDPOINTS[path], json.dumps(body).encode())
    [record] = gateway.records.all
    return record


async def test_an_answered_request_is_done(gateway: FakeGateway) -> None:
    record = await recorded(gateway, START, CHUNK, END)
    assert (record.end, record.status, record.code, record.endpoint) == (End.DONE, 200, None, PATH)
    assert record.usage == END.usage
    assert record.target is not None
    assert (record.context.id, record.context.caller.team, record.target.model) == ("r-1", "default", "chat")
    assert record.seconds.keys() == {"receive", "total", "queue", "load", "first", "device", "cold", "swap"}
    assert 0 <= record.seconds["queue"] <= record.seconds["first"] <= record.seconds["total"]


async def test_only_the_first_request_for_a_model_causes_its_load(gateway: FakeGateway) -> None:
    """Others may arrive while it waits for memory or for files."""
    entry, queue = gateway.entries["chat"], gateway.queues["chat"]
    entry.state = ModelState.ABSENT
    queue.close()
    gateway.links["chat"].script = lambda _: [START, CHUNK, END]

    def ask(name: str) -> asyncio.Task[Answered]:
        requested = answer(gateway.gateway, RequestContext(name), ENDPOINTS[PATH], json.dumps(BODY).encode())
        return asyncio.create_task(requested)

    first = ask("first")
    await eventually_waits(queue, 1)
    entry.requested_since = 0.0
    second = ask("second")
    await eventually_waits(queue, 2)
    entry.state, entry.requested_since = ModelState.READY, None
    queue.open(cast(SlotLink, gateway.links["chat"]))
    await asyncio.gather(first, second)
    cold = {record.context.id: record.seconds["cold"] for record in gateway.records.all}
    assert cold["first"] > 0
    assert cold["second"] == 0


async def eventually_waits(queue: ModelQueue, count: int) -> None:
    while queue.waiting < count:
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({**BODY, "model": "nobody"}, 404, "model_not_found"),
        ({**BODY, "adapter_id": 3}, 400, "invalid_value"),
        ({**BODY, "model": None}, 400, "invalid_value"),
    ],
)
async def test_a_request_refused_before_its_target_is_known_has_no_target(
    gateway: FakeGateway, body: dict[str, Any], status: int, code: str
) -> None:
    record = await recorded(gateway, body=body)
    assert (record.end, record.target, record.status, record.code) == (End.REFUSED, None, status, code)
    assert "queue" not in record.seconds


async def test_a_failed_model_refuses_requests(gateway: FakeGateway) -> None:
    gateway.refuse = Unavailable("failed", code="model_failed")
    record = await recorded(gateway)
    assert (record.end, record.status, record.code) == (End.REFUSED, 503, "model_failed")
    assert record.target is not None
    assert record.usage == Usage()


async def test_a_202_counts_as_refused(gateway: FakeGateway) -> None:
    gateway.entries["chat"].state = ModelState.ABSENT
    context = RequestContext("r", preference=Preference(respond_async=True))
    record = await recorded(gateway, context=context)
    assert (record.end, record.status) == (End.REFUSED, 202)


async def test_an_engines_400_counts_as_refused(gateway: FakeGateway) -> None:
    record = await recorded(gateway, ResponseStart(status=400, content_type="application/json"), Chunk(data=b"{}"), END)
    assert (record.end, record.status) == (End.REFUSED, 400)
    gateway.records.all.clear()
    record = await recorded(gateway, BadRequest("too long"))
    assert (record.end, record.status) == (End.REFUSED, 400)


async def test_tokens_made_before_the_engine_died_count(gateway: FakeGateway) -> None:
    record = await recorded(gateway, START, CHUNK, DIED)
    assert (record.end, record.status, record.code) == (End.ENGINE_DIED, 200, "engine_died")
    assert record.usage == Usage(prompt_tokens=7, completion_tokens=1, cached_tokens=4)


async def test_an_engine_that_dies_before_the_first_byte_has_made_no_tokens(gateway: FakeGateway) -> None:
    record = await recorded(gateway, DIED)
    assert (record.end, record.status, record.usage) == (End.ENGINE_DIED, 503, Usage())
    gateway.records.all.clear()
    record = await recorded(gateway, END, DIED)  # only the engine's process died, so that its slot still reports counts
    assert (record.end, record.status, record.usage) == (End.ENGINE_DIED, 503, Usage())


async def test_an_engines_error_or_empty_answer_is_a_failure(gateway: FakeGateway) -> None:
    record = await recorded(gateway, START, CHUNK, EngineFailed("it broke"))
    assert (record.end, record.status, record.code) == (End.FAILED, 200, "engine_failed")
    gateway.records.all.clear()
    record = await recorded(gateway)
    assert (record.end, record.status) == (End.FAILED, 500)


async def test_a_deadline_that_passed_before_the_engine_sends_it_nothing(gateway: FakeGateway) -> None:
    record = await recorded(gateway, context=RequestContext("r", deadline=time.monotonic()))
    assert (record.end, record.status, record.code) == (End.DEADLINE, 504, "deadline_exceeded")
    assert not gateway.links["chat"].requests


@pytest.mark.parametrize("free", [0, 2])
async def test_a_deadline_that_passes_in_the_engine_ends_the_work_there(tmp_path: Path, free: int) -> None:
    status = 200 if free else 504
    for seconds in (0.05, 1.0, 10.0, PATIENCE):  # longer if this machine is too slow for a short one
        gateway = FakeGateway(tmp_path / str(seconds))
        link = gateway.links["chat"]
        link.tokens, link.free = (7, 1, 4), free
        link.gate.clear()
        context = RequestContext("r")
        within = replace(context, deadline=context.arrived + seconds)
        record = await recorded(gateway, START, CHUNK, END, context=within)
        assert (record.end, record.code) == (End.DEADLINE, "deadline_exceeded")
        if record.status == status and link.requests:
            break
    assert record.status == status
    assert record.usage.completion_tokens == (1 if free else 0)
    assert link.cancelled == [1]
    assert gateway.released == [True]


@pytest.fixture
def app(gateway: FakeGateway) -> FastAPI:
    return application(gateway)


async def leaves(app: FastAPI, gateway: FakeGateway, chunk: Chunk = CHUNK) -> RequestRecord:
    """Return the record of a request whose client leaves after the first chunk."""
    link = gateway.links["chat"]
    link.script = lambda _: [START, chunk, END]
    link.free = 2
    link.gate.clear()
    wire = Wire(app, PATH, [json.dumps(BODY).encode()], {"x-request-id": "mine"})
    task = asyncio.create_task(wire.run())
    await wire.first.wait()
    wire.leave.set()
    await asyncio.wait_for(task, 200)
    [record] = gateway.records.all
    return record


async def test_tokens_made_before_a_client_left_count(app: FastAPI, gateway: FakeGateway) -> None:
    record = await leaves(app, gateway)
    assert (record.end, record.status, record.code, record.context.id) == (End.CANCELLED, 200, None, "mine")
    assert record.usage == Usage(prompt_tokens=7, completion_tokens=1, cached_tokens=4)


async def test_a_client_that_leaves_with_the_last_event_has_its_answer(app: FastAPI, gateway: FakeGateway) -> None:
    """OpenAI's SDK does so, before the engine has reported its end."""
    record = await leaves(app, gateway, Chunk(data=b"data: {}\n\ndata: [DONE]\n\n"))
    assert (record.end, record.usage.prompt_tokens) == (End.DONE, 7)


async def test_a_body_that_is_too_long_is_refused_by_its_headers(app: FastAPI, gateway: FakeGateway) -> None:
    wire = Wire(app, PATH, [b"{}"], {"content-length": str(1 << 30)})
    await wire.run()
    [record] = gateway.records.all
    assert (record.end, record.status, record.code) == (End.REFUSED, 413, "payload_too_large")


async def test_a_client_that_leaves_before_its_body_ends_cancels(app: FastAPI, gateway: FakeGateway) -> None:
    for path, headers in (
        (PATH, {}),
        ("/v1/audio/transcriptions", {"content-type": "multipart/form-data; boundary=x"}),
    ):
        gateway.records.all.clear()
        wire = Wire(app, path, [b"--x\r\n"], headers)
        wire.complete = False
        wire.leave.set()
        await wire.run()
        [record] = gateway.records.all
        assert (record.end, record.endpoint) == (End.CANCELLED, path)


async def test_many_queries_in_one_request_are_one_record(gateway: FakeGateway) -> None:
    gateway.links["rerank"].script = rerank
    body = {"model": "rerank", "text_1": ["a", "b", "c"], "text_2": DOCUMENTS}
    record = await recorded(gateway, body=body, path="/score")
    assert len(gateway.links["rerank"].requests) == 3
    assert (record.end, record.usage.prompt_tokens) == (End.DONE, 30)


async def test_only_streams_count_for_the_time_between_tokens(gateway: FakeGateway) -> None:
    """The first byte of a complete answer comes with its last, which would give 0 seconds per token."""
    whole = ResponseStart(status=200, content_type="application/json")
    await recorded(gateway, whole, CHUNK, END, body={**BODY, "stream": False})
    assert not list(gateway.metrics.per_token.collect()[0].samples)
    gateway.records.all.clear()
    await recorded(gateway, START, CHUNK, END)
    counts = [s.value for s in gateway.metrics.per_token.collect()[0].samples if s.name.endswith("_count")]
    assert counts == [1]


async def test_a_sink_that_raises_breaks_nothing(gateway: FakeGateway) -> None:
    class Broken:
        def take(self, record: RequestRecord) -> None:
            raise OSError("disk full")

    broken = FakeGateway(gateway.settings.data_dir.parent, sinks=[Broken()])
    record = await recorded(broken, START, CHUNK, END)
    assert record.end is End.DONE


@pytest.mark.parametrize("path", sorted(ENDPOINTS))
async def test_the_recorded_status_is_that_of_the_answer(gateway: FakeGateway, path: str) -> None:
    """Also in dialects with statuses of their own: TGI's for an invalid request is 422."""
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answers = [
            await client.post(path, json=[]),
            await client.post(path, json={"model": "missing", "inputs": 1, "max_tokens": "many"}),
            await client.post(path, content=b"x", headers={"Content-Encoding": "br"}),
        ]
    assert [record.status for record in gateway.records.all] == [answer.status_code for answer in answers]


TOO_LONG = {"message": "Too long.", "type": "BadRequestError", "code": "context_length_exceeded"}


@pytest.mark.parametrize(
    ("path", "error", "code"),
    [
        (PATH, TOO_LONG, "context_length_exceeded"),
        ("/v1/messages", TOO_LONG, "context_length_exceeded"),
        ("/v2/chat", TOO_LONG, "context_length_exceeded"),
        ("/generate", TOO_LONG, "context_length_exceeded"),
        (PATH, {"message": "Odd.", "type": "BadRequestError", "code": 400}, "invalid_value"),
        ("/v1/messages", {"message": "Odd.", "type": "BadRequestError", "code": 400}, "invalid_value"),
        ("/v2/chat", {"message": "Odd.", "type": "BadRequestError", "code": 400}, "invalid_value"),
        ("/generate", {"message": "Odd.", "type": "BadRequestError", "code": 400}, "invalid_value"),
    ],
)  # fmt: skip
async def test_a_refusal_by_the_engine_has_its_code(
    gateway: FakeGateway, path: str, error: dict[str, Any], code: str
) -> None:
    """So it counts in `roundhouse_errors_total`, like the refusals by the gateway."""
    start = ResponseStart(status=400, content_type="application/json")
    message = {"role": "user", "content": "hello"}
    body = {"model": "chat", "inputs": "hello"} if path == "/generate" else {"model": "chat", "messages": [message]}
    record = await recorded(
        gateway, start, Chunk(data=json.dumps({"error": error}).encode()), END, body=body, path=path
    )
    assert (record.end, record.status, record.code) == (End.REFUSED, 422 if path == "/generate" else 400, code)
    series = next(iter(gateway.metrics.errors.collect())).samples
    assert {(one.labels["model"], one.labels["kind"]) for one in series} == {("chat", code)}
