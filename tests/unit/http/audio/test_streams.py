"""Streamed transcriptions: events, errors in the middle, clients that disconnect, and OpenAI's client."""

import asyncio
import json
import re
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from models.messages import Event, Progress, ResponseEnd, Usage
from registry.errors import EngineFailed, RoundhouseError
from runtime.residency.states import ModelState
from runtime.scheduling.fair import QueueRequest
from tests.unit.http.audio.script import (
    END,
    INFO,
    PATH,
    SCRIPT,
    SEGMENTS,
    TEXT,
    WAV,
    left_over,
    post,
    segment,
)
from tests.unit.http.fakes import FakeGateway, Wire


@pytest.fixture(autouse=True)
def scripted(gateway: FakeGateway) -> None:
    gateway.links["speech"].script = lambda _: SCRIPT


# --- streams -------------------------------------------------------------------------------------------------------
def events(text: str) -> list[dict[str, Any]]:
    blocks = [block for block in text.split("\n\n") if block]
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


async def test_a_stream_has_deltas_and_the_whole_text(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    response = await post(client, stream="true")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-roundhouse-model"] == "speech@rev"
    found = events(response.text)
    assert found == [
        {"type": "transcript.text.delta", "delta": "Turn on <the> lamp."},
        {"type": "transcript.text.delta", "delta": " Now --> & then."},
        {"type": "transcript.text.done", "text": TEXT},
    ]
    assert gateway.outcomes() == {("speech", PATH, "ok"): 1.0}
    assert not left_over(gateway)


async def test_a_stream_of_silence_has_only_its_end(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    gateway.links["speech"].script = lambda _: [INFO, segment(1, 0, 1, " "), END]
    found = events((await post(client, stream="true")).text)
    assert found == [{"type": "transcript.text.done", "text": ""}]


async def test_an_error_in_mid_stream_is_its_last_event(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    died = EngineFailed("The engine broke.", code="engine_died")
    broken: list[Event | RoundhouseError] = [INFO, SEGMENTS[0], died]
    gateway.links["speech"].script = lambda _: broken
    found = events((await post(client, stream="true")).text)
    assert found[0]["type"] == "transcript.text.delta"
    assert found[-1]["error"]["code"] == "engine_died"
    assert gateway.outcomes() == {("speech", PATH, "engine_died"): 1.0}


async def test_progress_comments_while_the_model_loads(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    entry = gateway.entries["speech"]
    entry.state, entry.progress = ModelState.LOADING, Progress(phase="weights", fraction=0.5)
    link = gateway.links["speech"]
    link.gate.clear()

    async def open_gate() -> None:
        await link.started.wait()
        await asyncio.sleep(0)
        link.gate.set()

    opening = asyncio.create_task(open_gate())
    response = await client.post(
        PATH, data={"model": "speech", "stream": "true"}, files={"file": ("a.wav", WAV)},
        headers={"X-Roundhouse-Progress": "sse"},
    )  # fmt: skip
    await opening
    assert response.text.startswith(": speech weights 50%\n\n")
    assert response.text.endswith('then."}\n\n')


@pytest.mark.parametrize("stream", ["true", "false"])
async def test_a_client_that_disconnects_stops_the_work(app: FastAPI, gateway: FakeGateway, stream: str) -> None:
    link = gateway.links["speech"]
    link.free = 2
    link.gate.clear()
    request = httpx.Request("POST", "http://test", data={"model": "speech", "stream": stream}, files={"file": WAV})
    wire = Wire(app, PATH, [request.read()], dict(request.headers))
    task = asyncio.create_task(wire.run())
    await (wire.first if stream == "true" else link.started).wait()
    assert len(left_over(gateway)) == 1
    wire.leave.set()
    await asyncio.wait_for(task, 200)
    assert link.cancelled == [1]
    assert gateway.released == [True]
    assert not left_over(gateway)
    assert gateway.outcomes() == {("speech", PATH, "cancelled"): 1.0}


async def test_only_finished_transcriptions_update_the_costs_of_recordings(
    client: httpx.AsyncClient, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    works: list[float] = []
    acquire = gateway.queues["speech"].acquire

    def watched(*more: Any, claim: QueueRequest) -> Any:
        works.append(claim.work)
        return acquire(*more, claim=claim)

    monkeypatch.setattr(gateway.queues["speech"], "acquire", watched)
    broken = [INFO, ResponseEnd(usage=Usage(audio_seconds=0.1)), EngineFailed("The engine broke.")]
    for script in (broken, SCRIPT, SCRIPT):
        gateway.links["speech"].script = lambda _, script=script: script
        await post(client)
    assert works[0] == works[1] < works[2]


# --- OpenAI's client -----------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:deprecated")  # deprecated by OpenAI, but still used
async def test_openais_client_reads_every_form_of_transcript(openai_client: openai.AsyncOpenAI) -> None:
    audio = openai_client.audio
    file = ("a.wav", WAV)
    plain = await audio.transcriptions.create(
        model="speech", file=file, temperature=0, chunking_strategy={"type": "server_vad"}
    )  # fmt: skip
    assert plain.text == TEXT
    assert plain.usage is not None
    assert plain.usage.type == "duration"
    assert plain.usage.seconds == 62
    verbose = await audio.transcriptions.create(
        model="speech", file=file, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert verbose.words is not None
    assert verbose.segments is not None
    assert (verbose.language, len(verbose.words), verbose.segments[1].end) == ("english", 2, 3661.25)
    assert verbose.usage is not None
    assert verbose.usage.seconds == 62
    assert await audio.transcriptions.create(model="speech", file=file, response_format="text") == TEXT + "\n"
    subtitles = await audio.transcriptions.create(model="speech", file=file, response_format="vtt")
    assert re.match(r"WEBVTT\n\n00:00", str(subtitles))
    assert (await audio.translations.create(model="speech", file=file)).text == TEXT
    with pytest.raises(openai.NotFoundError):
        await audio.transcriptions.create(model="nobody", file=file)


async def test_openais_client_streams(openai_client: openai.AsyncOpenAI) -> None:
    stream = await openai_client.audio.transcriptions.create(model="speech", file=("a.wav", WAV), stream=True)
    found = [event async for event in stream]
    assert [event.type for event in found] == ["transcript.text.delta", "transcript.text.delta", "transcript.text.done"]
    assert "".join(event.delta for event in found if event.type == "transcript.text.delta") == TEXT
    assert found[-1].type == "transcript.text.done"
    assert found[-1].text == TEXT


async def test_openais_client_sees_an_error_in_mid_stream(
    openai_client: openai.AsyncOpenAI, gateway: FakeGateway
) -> None:
    gateway.links["speech"].script = lambda _: [INFO, SEGMENTS[0], EngineFailed("The engine broke.")]
    stream = await openai_client.audio.transcriptions.create(model="speech", file=("a.wav", WAV), stream=True)
    with pytest.raises(openai.APIError, match="The engine broke"):
        async for _ in stream:
            pass
