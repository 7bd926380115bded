"""Transcription: options, formats, streams, and what the engine's errors become."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from models.messages import Event, Finished, Progress, Segment, TranscribeRequest, TranscriptInfo, Usage, Word
from registry.errors import BadRequest, EngineFailed, RoundhouseError, Unavailable
from runtime.endpoints.audio_formats import clock, text
from runtime.residency.states import ModelState
from tests.unit.endpoints.fakes import FakeGateway, Wire

PATH = "/v1/audio/transcriptions"
INFO = TranscriptInfo(language="en", language_probability=0.9, duration=61.5, duration_after_vad=60.0)
WAV = b"RIFF" + bytes(range(256)) * 16


def segment(number: int, start: float, end: float, text: str) -> Segment:
    words = [Word(start=start, end=end, word=text, probability=0.5)]
    return Segment(
        id=number, seek=0, start=start, end=end, text=text, tokens=[1, 2], temperature=0.0, avg_logprob=-0.25,
        compression_ratio=1.5, no_speech_prob=0.125, words=words,
    )  # fmt: skip


SEGMENTS = [segment(1, 0.0, 1.5, " Turn on <the> lamp."), segment(2, 3599.9996, 3661.25, " Now --> & then.")]
END = Finished(usage=Usage(audio_seconds=61.5, batch=2))
SCRIPT: list[Event] = [INFO, *SEGMENTS, END]
TEXT = "Turn on <the> lamp. Now --> & then."
DURATION = {"type": "duration", "seconds": 62}


@pytest.fixture(autouse=True)
def scripted(gateway: FakeGateway) -> None:
    gateway.links["speech"].script = lambda _: SCRIPT


def asked(gateway: FakeGateway) -> TranscribeRequest:
    request = gateway.links["speech"].requests[-1]
    assert isinstance(request, TranscribeRequest)
    return request


def left_over(gateway: FakeGateway) -> list[Path]:
    return list(gateway.settings.run_dir.rglob("*.audio"))


async def post(client: httpx.AsyncClient, /, path: str = PATH, **fields: Any) -> httpx.Response:
    return await client.post(path, data={"model": "speech", **fields}, files={"file": ("a.wav", WAV, "audio/wav")})


# --- formats -------------------------------------------------------------------------------------------------------
async def test_json_is_the_default(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    response = await post(client)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {"text": TEXT, "usage": DURATION}
    assert response.headers["x-roundhouse-model"] == "speech@rev"
    assert gateway.outcomes() == {("speech", PATH, "ok"): 1.0}
    assert gateway.released == [True]
    assert not left_over(gateway)


async def test_text(client: httpx.AsyncClient) -> None:
    response = await post(client, response_format="text")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.text == TEXT + "\n"


async def test_srt(client: httpx.AsyncClient) -> None:
    response = await post(client, response_format="srt")
    assert response.headers["content-type"] == "application/x-subrip; charset=utf-8"
    assert response.text == (
        "1\n00:00:00,000 --> 00:00:01,500\nTurn on <the> lamp.\n\n2\n01:00:00,000 --> 01:01:01,250\nNow -> & then.\n\n"
    )


async def test_vtt(client: httpx.AsyncClient) -> None:
    response = await post(client, response_format="vtt")
    assert response.headers["content-type"] == "text/vtt; charset=utf-8"
    assert response.text == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nTurn on &lt;the&gt; lamp.\n\n"
        "01:00:00.000 --> 01:01:01.250\nNow --&gt; &amp; then.\n\n"
    )


async def test_verbose_json(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    found = (await post(client, response_format="verbose_json")).json()
    assert {k: found[k] for k in ("task", "language", "duration", "text", "usage")} == {
        "task": "transcribe", "language": "english", "duration": 61.5, "text": TEXT, "usage": DURATION,
    }  # fmt: skip
    assert "words" not in found
    assert found["segments"][0] == {
        "id": 0, "seek": 0, "start": 0.0, "end": 1.5, "text": " Turn on <the> lamp.", "tokens": [1, 2],
        "temperature": 0.0, "avg_logprob": -0.25, "compression_ratio": 1.5, "no_speech_prob": 0.125,
    }  # fmt: skip
    assert found["segments"][1]["id"] == 1
    assert not asked(gateway).word_timestamps


@pytest.mark.parametrize("name", ["timestamp_granularities[]", "timestamp_granularities"])
async def test_words(client: httpx.AsyncClient, gateway: FakeGateway, name: str) -> None:
    found = (await post(client, PATH, response_format="verbose_json", **{name: ["word", "segment"]})).json()
    assert found["words"][0] == {"word": "Turn on <the> lamp.", "start": 0.0, "end": 1.5}
    assert len(found["segments"]) == 2
    assert asked(gateway).word_timestamps
    found = (await post(client, response_format="verbose_json", **{name: "word"})).json()
    assert "segments" not in found
    assert len(found["words"]) == 2


@pytest.mark.parametrize("format_", ["json", "text", "srt", "vtt", "verbose_json"])
async def test_silence_is_an_empty_text(client: httpx.AsyncClient, gateway: FakeGateway, format_: str) -> None:
    gateway.links["speech"].script = lambda _: [INFO, END]
    response = await post(client, response_format=format_)
    assert response.status_code == 200
    if format_ in ("json", "verbose_json"):
        assert response.json()["text"] == ""
    else:
        assert response.text == {"text": "\n", "srt": "", "vtt": "WEBVTT\n\n"}[format_]


@pytest.mark.parametrize(
    ("language", "texts", "whole"),
    [
        ("en", ["one", "two", " three", "", " ", ", four."], "one two three, four."),
        ("en", [" ", " one\n", "two "], "one two"),
        ("zh", ["你好", "世界", " ok"], "你好世界 ok"),
        ("en", [], ""),
    ],
)
def test_segments_are_joined_by_the_languages_custom(language: str, texts: list[str], whole: str) -> None:
    assert text([segment(1, 0, 1, words) for words in texts], language) == whole


def test_clock() -> None:
    assert clock(0.0004, ".") == "00:00:00.000"
    assert clock(59.9996, ",") == "00:01:00,000"
    assert clock(100 * 3600, ".") == "100:00:00.000"
    assert clock(-1, ".") == "00:00:00.000"


# --- options -------------------------------------------------------------------------------------------------------
async def test_options_reach_the_engine(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    await post(client)
    plain = asked(gateway)
    assert plain.task == "transcribe"
    assert (plain.language, plain.prompt, plain.hotwords, plain.vad) == (None, None, None, None)
    assert plain.temperature == [0.0]
    assert plain.max_seconds == gateway.settings.max_audio_seconds
    await post(
        client, PATH, language="DE", prompt="names", hotwords="lamp", temperature="0.4", vad_filter="true", user="u",
        **{"keywords[]": ["door", "hall"]},
    )  # fmt: skip
    got = asked(gateway)
    assert (got.language, got.prompt, got.hotwords, got.vad) == ("de", "names", "lamp, door, hall", True)
    assert got.temperature == [0.4]


@pytest.mark.parametrize(
    ("fields", "vad"),
    [
        ({"vad_filter": "false"}, False),
        ({"vad_filter": "0"}, False),
        ({"vad_filter": ""}, None),
        ({"chunking_strategy": "auto"}, True),
        ({"chunking_strategy": '{"type": "server_vad"}'}, True),
        ({"chunking_strategy": "server_vad"}, True),
    ],
)
async def test_voice_detection(
    client: httpx.AsyncClient, gateway: FakeGateway, fields: dict[str, str], vad: bool | None
) -> None:
    assert (await post(client, **fields)).status_code == 200
    assert asked(gateway).vad is vad


@pytest.mark.parametrize(
    ("given", "code"),
    [("en", "en"), ("English", "en"), ("yue", "yue"), ("haitian creole", "ht"), ("jv", "jw"), ("", None)],
)
async def test_languages(client: httpx.AsyncClient, gateway: FakeGateway, given: str, code: str | None) -> None:
    assert (await post(client, language=given)).status_code == 200
    assert asked(gateway).language == code
    assert (await post(client, **{"languages[]": given})).status_code == 200
    assert asked(gateway).language == code


async def test_translations(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    path = "/v1/audio/translations"
    gateway.links["speech"].script = lambda _: [
        TranscriptInfo(language="de", language_probability=1, duration=1, duration_after_vad=1), *SEGMENTS, END,
    ]  # fmt: skip
    found = (await post(client, path, response_format="verbose_json")).json()
    assert (found["task"], found["language"]) == ("translate", "english")
    assert asked(gateway).task == "translate"
    assert gateway.outcomes() == {("speech", path, "ok"): 1.0}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "diarized_json"}, "response_format"),
        ({"temperature": "1.5"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"language": "klingon"}, "language"),
        ({"languages[]": ["en", "de"]}, "languages"),
        ({"stream": "maybe"}, "stream"),
        ({"stream": "true", "response_format": "srt"}, "stream"),
        ({"stream": "true", "response_format": "verbose_json"}, "stream"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"timestamp_granularities[]": "letter", "response_format": "verbose_json"}, "timestamp_granularities"),
        ({"include[]": "logprobs"}, "include"),
        ({"chunking_strategy": '{"type": "server_vad", "threshold": 0.2}'}, "chunking_strategy"),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names[]"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"best_of": "5"}, "best_of"),
        ({"model": "chat"}, "model"),
        ({"model": ""}, "model"),
    ],
)
async def test_faults_are_400_that_name_the_field(
    client: httpx.AsyncClient, gateway: FakeGateway, fields: Any, param: str
) -> None:
    response = await post(client, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert not left_over(gateway)
    assert not gateway.links["speech"].requests


async def test_the_engines_refusal_keeps_its_status(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    for stream in ("false", "true"):
        gateway.links["speech"].script = lambda _: [BadRequest("This is no recording.", param="file")]
        response = await post(client, stream=stream)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "file"
    gateway.refuse = Unavailable("loading", retry_after=3)
    response = await post(client)
    assert (response.status_code, response.headers["retry-after"]) == (503, "3")
    assert not left_over(gateway)


async def test_an_engine_that_says_nothing_is_500(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    gateway.links["speech"].script = lambda _: [END]
    assert (await post(client)).status_code == 500
    assert (await post(client, stream="true")).status_code == 500


# --- streams -------------------------------------------------------------------------------------------------------
def events(text: str) -> list[dict[str, Any]]:
    blocks = [block for block in text.split("\n\n") if block]
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


async def test_stream(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    response = await post(client, stream="true")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-roundhouse-model"] == "speech@rev"
    found = events(response.text)
    assert found == [
        {"type": "transcript.text.delta", "delta": "Turn on <the> lamp."},
        {"type": "transcript.text.delta", "delta": " Now --> & then."},
        {"type": "transcript.text.done", "text": TEXT, "usage": DURATION},
    ]
    assert gateway.outcomes() == {("speech", PATH, "ok"): 1.0}
    assert not left_over(gateway)


async def test_stream_of_silence(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    gateway.links["speech"].script = lambda _: [INFO, segment(1, 0, 1, " "), END]
    found = events((await post(client, stream="true")).text)
    assert found == [{"type": "transcript.text.done", "text": "", "usage": DURATION}]


async def test_an_error_in_mid_stream_is_its_last_event(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    died = EngineFailed("The engine broke.", code="engine_died")
    broken: list[Event | RoundhouseError] = [INFO, SEGMENTS[0], died]
    gateway.links["speech"].script = lambda _: broken
    found = events((await post(client, stream="true")).text)
    assert found[0]["type"] == "transcript.text.delta"
    assert found[-1]["error"]["code"] == "engine_died"
    assert gateway.outcomes() == {("speech", PATH, "engine_died"): 1.0}


async def test_progress_comments_while_the_model_loads(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    entry = gateway.residency.entries["speech"]
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
    assert response.text.endswith('"type":"duration","seconds":62}}\n\n')


@pytest.mark.parametrize("stream", ["true", "false"])
async def test_a_client_that_leaves_stops_the_work(app: FastAPI, gateway: FakeGateway, stream: str) -> None:
    link = gateway.links["speech"]
    link.free = 2
    link.gate.clear()
    request = httpx.Request("POST", "http://test", data={"model": "speech", "stream": stream}, files={"file": WAV})
    wire = Wire(app, PATH, [request.read()], dict(request.headers))
    task = asyncio.create_task(wire.run())
    await (wire.first if stream == "true" else link.started).wait()
    assert len(left_over(gateway)) == 1
    wire.leave.set()
    await asyncio.wait_for(task, 5)
    assert link.cancelled == [1]
    assert gateway.released == [True]
    assert not left_over(gateway)
    assert gateway.outcomes() == {("speech", PATH, "cancelled"): 1.0}


# --- OpenAI's client -----------------------------------------------------------------------------------------------
async def test_openais_client(openai_client: openai.AsyncOpenAI) -> None:
    audio = openai_client.audio
    file = ("a.wav", WAV)
    plain = await audio.transcriptions.create(model="speech", file=file)
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
