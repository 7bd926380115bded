"""Durations of a node's own requests in its reports."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleet.demand import demand_of
from fleet.index import NodeIndex
from fleet.reports import ReplicaReport
from fleet.table import ReportTable
from models.messages import Chunk, Event, ResponseEnd, ResponseStart, Usage
from runtime.gateway.context import RequestContext
from runtime.gateway.peers.reporting import FEWEST, LEARNING_RATE, MOST_MODELS, RequestTimer, RequestTimes
from runtime.gateway.record import End, RequestRecord
from runtime.gateway.target import Target
from runtime.residency.states import ModelState
from tests.eventually import PATIENCE
from tests.unit.http.hops.rig import Fleet, opened
from tests.unit.http.hops.test_front import EMBED, STREAM, vector

UNKNOWN = RequestTimes()
TARGET = Target("chat", "chat", "1")


def record(prefill: float, decode: float, prompt: int = 100, cached: int = 0, **fields: Any) -> RequestRecord:
    """Return a record of a streamed answer that began after 2 s in the queue."""
    seconds = {"receive": 0.0, "queue": 2.0, "load": 0.0, "swap": 0.0, "first": 2.0 + prefill}
    seconds["total"] = 2.0 + prefill + decode
    made = RequestRecord(
        RequestContext("r"), "/v1/chat/completions", TARGET, End.DONE, 200, None, Usage(prompt, 10, cached), seconds,
        is_stream=True,
    )  # fmt: skip
    return replace(made, **fields)


def timed(*records: RequestRecord) -> RequestTimes:
    timer = RequestTimer()
    for one in records:
        timer.take(one)
    return timer.times_of("chat")


def test_nothing_is_known_before_a_request_has_ended() -> None:
    assert timed() == UNKNOWN
    assert timed(record(1.0, 2.0, end=End.CANCELLED), record(1.0, 2.0, target=None)) == UNKNOWN
    assert timed(record(1.0, 2.0, target=replace(TARGET, backend="peers"))) == UNKNOWN, "it ran on another node"
    assert timed(record(1.0, 2.0, target=replace(TARGET, model="other"))) == UNKNOWN
    refused = replace(record(1.0, 2.0), seconds={"receive": 0.0, "total": 0.1})
    assert timed(refused) == UNKNOWN, "it did not run"


def test_means_follow_each_request_without_its_time_in_the_queue() -> None:
    assert timed(record(1.0, 3.0)) == pytest.approx((4.0, 1.0, 0.0))
    assert timed(record(1.0, 3.0), record(2.0, 6.0)) == pytest.approx(
        (4.0 + LEARNING_RATE * 4.0, 1.0 + LEARNING_RATE * 1.0, 0.0)
    )


def test_token_seconds_need_eight_requests_and_resist_a_slow_one() -> None:
    usual = [record(1.0, 3.0)] * (FEWEST - 1)
    assert timed(*usual).token == 0.0
    assert timed(*usual, usual[0]).token == pytest.approx(0.4)
    assert timed(record(10.0, 30.0), *usual).token == pytest.approx(0.4 * (FEWEST + 9) / FEWEST)
    vectors = replace(record(1.0, 0.0, is_stream=False), usage=Usage(prompt_tokens=100))
    assert timed(*[vectors] * FEWEST).token == pytest.approx(0.01)
    assert timed(*[replace(vectors, usage=Usage(audio_seconds=3.0))] * FEWEST).token == 0.0


def test_an_answer_that_is_not_streamed_has_no_time_of_its_prompt() -> None:
    assert timed(record(0.0, 4.0, is_stream=False)) == pytest.approx((4.0, 0.0, 0.0))


def test_prompts_with_a_cached_beginning_count_only_for_the_mean_length() -> None:
    assert timed(record(1.0, 3.0, 1000, cached=900)).prefill == 0.0
    times = timed(record(1.0, 3.0, 1000), record(0.1, 3.0, 2000, cached=1990))
    assert times.prefill == pytest.approx(1.0 + LEARNING_RATE), "1 ms a token, for a longer mean prompt"
    assert timed(record(1.0, 3.0, 1000, cached=500)).prefill == pytest.approx(2.0)


def test_the_number_of_models_is_bounded() -> None:
    timer = RequestTimer()
    for number in range(2 * MOST_MODELS):
        timer.take(record(1.0, 3.0, target=replace(TARGET, model=f"m{number}")))
    assert timer.times_of("m0") == UNKNOWN
    assert timer.times_of(f"m{2 * MOST_MODELS - 1}") != UNKNOWN


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with opened(tmp_path) as fleet:
        yield fleet


def answer(_: Any) -> list[Event]:
    start = ResponseStart(status=200, content_type="text/event-stream; charset=utf-8")
    usage = Usage(prompt_tokens=7, completion_tokens=1)
    return [start, Chunk(b"data: {}\n\n"), Chunk(b"data: [DONE]\n\n"), ResponseEnd(usage=usage)]


async def test_a_node_reports_how_long_its_requests_take(fleet: Fleet) -> None:
    node = fleet.node("node-1")
    node.fake.links["embed"].script, node.fake.links["chat"].script = vector, answer
    await fleet.start(node)

    def reported(model: str) -> ReplicaReport:
        return next(one for one in node.reporter.report().replicas if one.model == model)

    assert (reported("chat").request_seconds, reported("chat").prefill_seconds) == (0.0, 0.0)
    assert (await fleet.client.post("/v1/chat/completions", json=STREAM)).status_code == 200
    assert (await fleet.client.post("/v1/embeddings", json=EMBED)).status_code == 200
    async with asyncio.timeout(PATIENCE):
        while not (reported("chat").request_seconds and reported("embed").request_seconds):
            await asyncio.sleep(0.01)
    chat = reported("chat")
    assert 0 < chat.prefill_seconds <= chat.request_seconds
    assert reported("embed").prefill_seconds == 0.0
    index = NodeIndex()
    index.take(node.reporter.report(), 1.0)
    load = index.entries["node-1"].loads["chat"]
    assert (load.prefill, load.turn) == (chat.prefill_seconds, chat.request_seconds / chat.capacity)


async def test_requests_that_wait_for_a_load_count_by_what_the_model_will_run_at_once(fleet: Fleet) -> None:
    node = fleet.node("node-1")
    entry, table = node.fake.entries["chat"], ReportTable()
    entry.state = ModelState.LOADING
    [chat] = [one for one in node.reporter.report().replicas if one.model == "chat"]
    waiting = msgspec.structs.replace(chat, waiting=entry.queue.policy.max_requests)
    table.add(msgspec.structs.replace(node.reporter.report(), replicas=(waiting,)), 1.0)
    assert (chat.state, chat.ready) == ("loading", 0)
    assert demand_of(table, 1.0) == {"chat": 1.0}
