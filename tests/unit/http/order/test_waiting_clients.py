"""Clients that wait for a load: preferences, progress comments, and errors in a stream that has begun."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.messages import Progress, Usage
from registry.errors import BadRequest, EngineFailed
from registry.recipes.definition import Recipe, Task
from runtime.gateway.backend import LoadProgress
from runtime.gateway.context import Preference, RequestContext
from runtime.gateway.local.backend import WorkEstimator
from runtime.http.dialect import Head, Part, Parts
from runtime.http.errors import Dialect
from runtime.http.hints import parse_preference
from runtime.http.routes import ENDPOINTS
from runtime.http.sending import Answer
from runtime.http.serving import serve, with_progress
from runtime.residency.entry import ModelEntry
from runtime.residency.states import ModelState
from tests.unit.http.answering import answer
from tests.unit.http.fakes import FakeGateway

LIMITS = {"x-ratelimit-remaining-requests": "7"}
STREAM, NO_CACHE = "text/event-stream; charset=utf-8", {"cache-control": "no-cache"}

RECIPE = Recipe.model_validate(
    {"id": "m", "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"}}
)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], Preference()),
        ([(b"prefer", b"respond-async")], Preference(respond_async=True)),
        ([(b"prefer", b"respond-async, wait=7")], Preference(respond_async=True, wait=7.0)),
        ([(b"prefer", b"wait=abc"), (b"prefer", b'Wait = "3"')], Preference(wait=3.0)),
        ([(b"x-roundhouse-progress", b"SSE")], Preference(progress=True)),
        ([(b"x-roundhouse-progress", b"sse"), (b"prefer", b"respond-async")], Preference(respond_async=True)),
        ([(b"prefer", b"handling=lenient; x")], Preference()),
        ([(b"prefer", b"handling=strict, wait=3")], Preference(wait=3.0, strict=True)),
    ],
)
def test_preferences_are_read_from_headers(headers: list[tuple[bytes, bytes]], expected: Preference) -> None:
    assert parse_preference(headers) == expected


def entry(**more: Any) -> ModelEntry:
    return ModelEntry(
        recipe=RECIPE, path=Path("x"), revision="r", needed=1, needed_detail="", load_seconds=4.0,
        queue=None, **more,  # type: ignore[arg-type]
    )  # fmt: skip


async def parts(*given: Part) -> Parts:
    for part in given:
        yield part


async def collect(answer: Parts) -> list[Part]:
    return [part async for part in answer]


async def test_comments_report_the_progress_until_the_answer_begins() -> None:
    loaded = asyncio.Event()

    async def answer() -> Parts:
        await loaded.wait()
        yield Head(200, "text/event-stream")
        yield b"data: 1\n\n"

    stream = with_progress("m", lambda: LoadProgress("weights", 0.4), answer(), LIMITS)
    assert await anext(stream) == Head(200, STREAM, {**NO_CACHE, **LIMITS}), "what is left of the limits comes first"
    assert await anext(stream) == b": m weights 40%\n\n"
    loaded.set()
    assert [part async for part in stream if part != b": m weights 40%\n\n"] == [b"data: 1\n\n"]


@pytest.mark.parametrize(("dialect", "name"), [(Dialect.OPENAI, b""), (Dialect.ANTHROPIC, b"event: error\n")])
async def test_an_engines_error_body_becomes_an_event(dialect: Dialect, name: bytes) -> None:
    """Anthropic's clients ignore events without a name, so the refusal looked like an empty answer."""
    answer = parts(Head(400, "application/json"), b'{"error":{}}')
    found = await collect(with_progress("m", lambda: None, answer, {}, dialect))
    assert found[0] == Head(200, STREAM, NO_CACHE)
    assert found[-1] == name + b'data: {"error":{}}\n\n'


async def test_a_client_that_leaves_during_a_load_ends_the_wait() -> None:
    began, left = asyncio.Event(), asyncio.Event()

    async def answer() -> Parts:
        try:
            began.set()
            await asyncio.Event().wait()
            yield b""
        finally:
            left.set()

    stream = with_progress("m", lambda: None, answer(), {})
    await anext(stream)
    await anext(stream)
    await began.wait()
    await stream.aclose()
    assert left.is_set()


class Wire:
    """One request to the application, whose client stays, or disconnects at once if `gone`."""

    def __init__(self, gateway: FakeGateway, *, gone: bool = False) -> None:
        self.gateway, self.gone = gateway, gone
        self.messages: list[Any] = []

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    async def receive(self) -> Any:
        if not self.gone:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def ask(self, path: str, body: dict[str, Any], **context: Any) -> None:
        made = RequestContext("r", **context)
        answer = serve(self.gateway.gateway, made, ENDPOINTS[path], json.dumps(body).encode())
        await Answer(answer)({"type": "http", "method": "POST", "headers": []}, self.receive, self.send)

    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.messages).decode()


@pytest.fixture
async def gateway(tmp_path: Path) -> FakeGateway:
    return FakeGateway(tmp_path)


CHAT = {"model": "chat", "messages": [], "max_tokens": 1}


async def test_an_error_is_the_last_event_of_a_stream_that_has_begun(gateway: FakeGateway) -> None:
    gateway.entries["chat"].state, gateway.refuse = ModelState.LOADING, EngineFailed("no weights")
    wire = Wire(gateway)
    await wire.ask("/v1/chat/completions", {**CHAT, "stream": True}, preference=Preference(progress=True))
    assert [m["status"] for m in wire.messages if m["type"] == "http.response.start"] == [200]
    assert json.loads(wire.text().split("data: ")[1])["error"]["message"] == "no weights"
    assert wire.messages[-1]["more_body"] is False


@pytest.mark.parametrize(("progress", "refused"), [(True, False), (False, True)])
async def test_comments_lift_the_clients_limit_on_silence(gateway: FakeGateway, progress: bool, refused: bool) -> None:
    """Such as `timeout=2` of OpenAI's SDK, which is for the time between two pieces of an answer."""
    chat = gateway.entries["chat"]
    chat.state, chat.load_seconds = ModelState.LOADING, 60.0
    wire, soon = Wire(gateway), time.monotonic() + 2.0
    preference = Preference(progress=progress)
    await wire.ask("/v1/chat/completions", {**CHAT, "stream": True}, preference=preference, first_by=soon)
    assert ("deadline_unreachable" in wire.text()) is refused


async def test_a_request_with_respond_async_gets_202_and_a_status_url(gateway: FakeGateway) -> None:
    gateway.entries["chat"].state, gateway.entries["chat"].load_seconds = ModelState.ABSENT, 3.2
    wire = Wire(gateway)
    await wire.ask("/v1/chat/completions", CHAT, preference=Preference(respond_async=True))
    headers = dict(wire.messages[0]["headers"])
    assert wire.messages[0]["status"] == 202
    assert (headers[b"location"], headers[b"retry-after"]) == (b"/v1/models/chat", b"4")
    assert json.loads(wire.text())["status_url"] == "/v1/models/chat"
    assert gateway.outcomes() == {("chat", "/v1/chat/completions", "202"): 1.0}


async def test_an_error_before_the_answer_keeps_its_status_and_dialect(gateway: FakeGateway) -> None:
    gateway.refuse = BadRequest("bad", param="x")
    wire = Wire(gateway)
    await wire.ask("/v1/messages", CHAT)
    assert wire.messages[0]["status"] == 400
    assert json.loads(wire.text()) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "bad"},
        "request_id": None,
    }


async def test_an_unmapped_error_is_a_500_without_its_message(gateway: FakeGateway) -> None:
    def broken(_request: Any) -> Any:
        raise KeyError("a secret prompt")

    gateway.links["chat"].look = broken
    wire = Wire(gateway)
    await wire.ask("/v1/chat/completions", CHAT)
    assert wire.messages[0]["status"] == 500
    assert "secret" not in wire.text()


async def test_a_disconnect_cancels_the_work(gateway: FakeGateway) -> None:
    gateway.links["chat"].gate.clear()
    wire = Wire(gateway, gone=True)
    await wire.ask("/v1/chat/completions", CHAT)
    assert gateway.outcomes() == {("chat", "/v1/chat/completions", "cancelled"): 1.0}
    assert wire.messages == []


def test_the_remaining_time_shrinks_with_the_progress() -> None:
    assert entry().remaining_load_seconds == 4.0
    model = entry(progress=Progress(phase="weights", fraction=0.5), state=ModelState.LOADING)
    assert model.remaining_load_seconds == 2.0


def test_a_model_falling_asleep_returns_after_its_sleep_and_a_wake() -> None:
    falls = entry(
        state=ModelState.DRAINING, falling_asleep=True, measured_first_sleep=16.0, measured_wake=2.0,
        asleep_since=100.0, clock=lambda: 101.0,
    )  # fmt: skip
    assert falls.remaining_load_seconds == 17.0


def test_the_progress_of_a_download_does_not_shorten_the_load_after_it() -> None:
    fetched = entry(progress=Progress(phase="fetching", fraction=0.9), state=ModelState.LOADING)
    assert fetched.remaining_load_seconds == 4.0


async def test_a_request_that_would_wait_too_long_learns_the_expected_wait(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path)
    gateway.entries["chat"].state, gateway.entries["chat"].load_seconds = ModelState.ABSENT, 40.0
    context = RequestContext("r")
    context = replace(context, deadline=context.arrived + 30.0)
    body = b'{"model": "chat", "messages": []}'
    found = await answer(gateway.gateway, context, ENDPOINTS["/v1/chat/completions"], body)
    error = json.loads(found.body)["error"]
    assert (found.status, error["code"], error["predicted_wait_seconds"]) == (429, "deadline_unreachable", 40.0)


def test_pictures_do_not_raise_the_estimate_for_texts() -> None:
    """Pictures have many tokens but their bytes are not in the size, while texts never have more tokens than bytes."""
    estimator = WorkEstimator(Task.CHAT)
    for _ in range(100):
        estimator.learn(150, "", Usage(prompt_tokens=1300, completion_tokens=5))
    assert estimator.prompt(4000) == 1000, "the default, as nothing is learnt from pictures"


def test_a_reranker_may_have_more_tokens_than_bytes() -> None:
    """It reads the query again with each document. Such requests were underestimated ten times."""
    estimator = WorkEstimator(Task.RERANK)
    for _ in range(100):
        estimator.learn(1_000, "", Usage(prompt_tokens=10_000))
    assert estimator.prompt(1_000) > 9_000


def test_answers_are_estimated_by_adapter_and_within_what_a_request_allows() -> None:
    estimator = WorkEstimator(Task.CHAT)
    estimator.learn(100, "long", Usage(prompt_tokens=25, completion_tokens=1000))
    assert estimator.work(100, "long", None) == estimator.prompt(100) + 4 * (64 + 0.1 * (1000 - 64))
    for _ in range(100):
        estimator.learn(100, "long", Usage(prompt_tokens=25, completion_tokens=1000))
    read = estimator.prompt(100)
    assert estimator.work(100, "", None) == estimator.work(100, "other", None) == read + 4 * 64, "its own"
    assert estimator.work(100, "long", None) == pytest.approx(read + 4 * 1000, rel=0.01)
    assert estimator.work(100, "long", 5000) == estimator.work(100, "long", None)
    assert estimator.work(100, "long", 10) == read + 4 * 10
    before = estimator.work(100, "long", None)
    estimator.learn(100, "long", Usage())
    assert estimator.work(100, "long", None) == before, "a request that ended before its tokens were counted"
    assert estimator.work(0, "", 0) == 1


def test_recordings_are_estimated_by_their_seconds() -> None:
    estimator = WorkEstimator(Task.TRANSCRIBE)
    for _ in range(100):
        estimator.learn(32_000, "", Usage(audio_seconds=2.0))
    assert estimator.prompt(64_000) == pytest.approx(4 * 50, rel=0.01)
