"""Transcription: options, formats, and the engine's errors."""

import json
from typing import Any

import httpx
import pytest

from models.messages import TranscriptInfo
from registry.errors import BadRequest, Unavailable
from runtime.http.audio.formats import clock, text
from tests.unit.http.audio.script import (
    DURATION,
    END,
    INFO,
    PATH,
    SCRIPT,
    SEGMENTS,
    TEXT,
    engine_request,
    left_over,
    post,
    segment,
)
from tests.unit.http.fakes import FakeGateway


@pytest.fixture(autouse=True)
def scripted(gateway: FakeGateway) -> None:
    gateway.links["speech"].script = lambda _: SCRIPT


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


async def test_text_is_plain(client: httpx.AsyncClient) -> None:
    response = await post(client, response_format="text")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.text == TEXT + "\n"


async def test_srt_has_subtitles(client: httpx.AsyncClient) -> None:
    response = await post(client, response_format="srt")
    assert response.headers["content-type"] == "application/x-subrip; charset=utf-8"
    assert response.text == (
        "1\n00:00:00,000 --> 00:00:01,500\nTurn on <the> lamp.\n\n2\n01:00:00,000 --> 01:01:01,250\nNow -> & then.\n\n"
    )


async def test_vtt_has_subtitles(client: httpx.AsyncClient) -> None:
    response = await post(client, response_format="vtt")
    assert response.headers["content-type"] == "text/vtt; charset=utf-8"
    assert response.text == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nTurn on &lt;the&gt; lamp.\n\n"
        "01:00:00.000 --> 01:01:01.250\nNow --&gt; &amp; then.\n\n"
    )


async def test_verbose_json_has_segments(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
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
    assert not engine_request(gateway).word_timestamps


@pytest.mark.parametrize("name", ["timestamp_granularities[]", "timestamp_granularities"])
async def test_words_have_times(client: httpx.AsyncClient, gateway: FakeGateway, name: str) -> None:
    found = (await post(client, PATH, response_format="verbose_json", **{name: ["word", "segment"]})).json()
    assert found["words"][0] == {"word": "Turn on <the> lamp.", "start": 0.0, "end": 1.5}
    assert len(found["segments"]) == 2
    assert engine_request(gateway).word_timestamps
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
def test_segments_are_joined_with_or_without_blanks_by_language(language: str, texts: list[str], whole: str) -> None:
    assert text([segment(1, 0, 1, words) for words in texts], language) == whole


def test_times_of_subtitles_are_formatted() -> None:
    assert clock(0.0004, ".") == "00:00:00.000"
    assert clock(59.9996, ",") == "00:01:00,000"
    assert clock(100 * 3600, ".") == "100:00:00.000"
    assert clock(-1, ".") == "00:00:00.000"


# --- options -------------------------------------------------------------------------------------------------------
async def test_options_reach_the_engine(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    await post(client)
    plain = engine_request(gateway)
    assert plain.task == "transcribe"
    assert (plain.language, plain.prompt, plain.hotwords, plain.vad) == (None, None, None, None)
    assert plain.temperature == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0], "Whisper's fall-back temperatures"
    assert plain.max_seconds == gateway.settings.max_audio_seconds
    await post(
        client, PATH, language="DE", prompt="names", hotwords="lamp", temperature="0.4", vad_filter="true", user="u",
        **{"keywords[]": ["door", "hall"]},
    )  # fmt: skip
    got = engine_request(gateway)
    assert (got.language, got.prompt, got.hotwords, got.vad) == ("de", "names", "lamp, door, hall", True)
    assert got.temperature == [0.4]
    await post(client, temperature="0")
    assert engine_request(gateway).temperature == plain.temperature


@pytest.mark.parametrize(
    ("fields", "vad"),
    [
        ({"vad_filter": "false"}, False),
        ({"vad_filter": "0"}, False),
        ({"vad_filter": ""}, None),
        ({"chunking_strategy": "auto"}, True),
        ({"chunking_strategy": '{"type": "server_vad"}'}, True),
        ({"chunking_strategy": "server_vad"}, True),
        ({"chunking_strategy[type]": "server_vad"}, True),
        ({"chunking_strategy": "auto", "vad_filter": "true"}, True),
    ],
)
async def test_each_vendors_field_sets_voice_detection(
    client: httpx.AsyncClient, gateway: FakeGateway, fields: dict[str, str], vad: bool | None
) -> None:
    assert (await post(client, **fields)).status_code == 200
    assert engine_request(gateway).vad is vad


@pytest.mark.parametrize(
    ("given", "code"),
    [("en", "en"), ("English", "en"), ("yue", "yue"), ("haitian creole", "ht"), ("jv", "jw"), ("", None),
     ("en-US", "en"), ("pt_BR", "pt"), ("jv-ID", "jw"), ("zh-Hans-CN", "zh"), ("auto", None), ("nb-NO", "no"),
     ("fil-PH", "tl"), ("Mandarin", "zh"), ("Norwegian", "no")],
)  # fmt: skip
async def test_a_language_may_be_a_code_a_name_or_a_locale(
    client: httpx.AsyncClient, gateway: FakeGateway, given: str, code: str | None
) -> None:
    assert (await post(client, language=given)).status_code == 200
    assert engine_request(gateway).language == code
    assert (await post(client, **{"languages[]": given})).status_code == 200
    assert engine_request(gateway).language == code


async def test_a_translation_is_english_and_counted_by_its_path(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    path = "/v1/audio/translations"
    gateway.links["speech"].script = lambda _: [
        TranscriptInfo(language="de", language_probability=1, duration=1, duration_after_vad=1), *SEGMENTS, END,
    ]  # fmt: skip
    found = (await post(client, path, response_format="verbose_json", translate="true")).json()
    assert (found["task"], found["language"]) == ("translate", "english")
    assert engine_request(gateway).task == "translate"
    assert gateway.outcomes() == {("speech", path, "ok"): 1.0}


@pytest.mark.parametrize(
    ("path", "language", "spaced"),
    [
        (PATH, "ja", False),
        (PATH, "Japanese", False),
        (PATH, "english", True),
        (PATH, "klingon", True),
        ("/v1/audio/translations", "ja", True),
    ],
)
async def test_segments_are_joined_as_the_language_is_written(
    client: httpx.AsyncClient, gateway: FakeGateway, path: str, language: str, spaced: bool
) -> None:
    """Providers return the language's name. A translation is in English, whatever was spoken."""
    info = TranscriptInfo(language=language, language_probability=1, duration=2, duration_after_vad=2)
    gateway.links["speech"].script = lambda _: [info, segment(1, 0, 1, "one"), segment(2, 1, 2, "two"), END]
    text = "one two" if spaced else "onetwo"
    assert (await post(client, path)).json()["text"] == text
    assert (await post(client, path, response_format="text")).text == f"{text}\n"
    found = (await post(client, path, response_format="verbose_json")).json()
    assert (found["text"], found["language"] == "japanese") == (text, not spaced)
    assert (
        json.dumps({"type": "transcript.text.done", "text": text}, separators=(",", ":"))
        in (await post(client, path, stream="true")).text
    )


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
        (
            {"chunking_strategy": " " * 1000 + '{"type": "server_vad"}'},
            "chunking_strategy",
        ),  # so long that it is not read
        ({"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "0.2"}, "chunking_strategy"),
        ({"chunking_strategy[type]": ["server_vad", "server_vad"]}, "chunking_strategy"),
        ({"chunking_strategy[type]": "server_vad", "chunking_strategy": "auto"}, "chunking_strategy"),
        ({"chunking_strategy": "auto", "vad_filter": "false"}, "vad_filter"),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"best_of": "5"}, "best_of"),
        ({"kwargs": '{"beam_size": 5}'}, "kwargs"),
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


async def test_xinferences_client_sends_an_empty_object_with_each_recording(client: httpx.AsyncClient) -> None:
    response = await post(client, kwargs="{}", temperature="0")
    assert response.status_code == 200, response.text


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


async def test_an_engine_that_returns_nothing_is_500(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    gateway.links["speech"].script = lambda _: [END]
    assert (await post(client)).status_code == 500
    assert (await post(client, stream="true")).status_code == 500
