"""With a provider of the client's dialect, bytes are passed on except for the model's name, and usage is counted."""

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.messages import Usage
from runtime.gateway.record import End
from tests.fakes import traces
from tests.fakes.provider import Play, Seen
from tests.processor_time import processor_time
from tests.unit.providers.rig import KEY, rigged, rigged_with


def scripted(seen: Seen) -> Play:
    return traces.chat_stream("big") if seen.body.get("stream") else traces.chat("big")


async def test_an_answer_is_passed_on_under_the_clients_name(tmp_path: Path) -> None:
    async with rigged(tmp_path, scripted) as rig:
        found = await rig.chat(temperature=0.5)
        assert found.status_code == 200
        assert found.json()["model"] == "there/big"
        assert found.json()["choices"][0]["message"]["content"] == "hello there"
        assert found.headers["x-roundhouse-model"] == "there/big@v1"
        (seen,) = rig.fake.seen
        assert seen.path == "/v1/chat/completions"
        assert seen.headers["authorization"] == f"Bearer {KEY}"
        assert seen.body == {"model": "big", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5}
        (record,) = rig.gateway.records.all
        assert record.end is End.DONE
        usage = record.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (12, 5, 4)
        assert KEY not in found.text + str(found.headers)


@pytest.mark.parametrize("expected", [True, False])
async def test_a_stream_is_passed_on(tmp_path: Path, expected: bool) -> None:
    """Usage is always requested from the provider, but clients that did not request it do not get its chunk."""
    options = {"stream_options": {"include_usage": True}} if expected else {}
    async with rigged(tmp_path, scripted) as rig:
        found = await rig.chat(stream=True, **options)
        events = [line[6:] for line in found.text.split("\n\n") if line]
        chunks = [json.loads(event) for event in events[:-1]]
        assert events[-1] == "[DONE]"
        assert {chunk["model"] for chunk in chunks} == {"there/big"}
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]) == "hello there"
        assert ("usage" in chunks[-1]) is expected
        assert rig.fake.seen[0].body["stream_options"] == {"include_usage": True}
        assert rig.gateway.records.all[0].usage.completion_tokens == 5


async def test_content_in_parts_is_passed_on(tmp_path: Path) -> None:
    """Mistral's models send thoughts like this, and a last chunk without choices."""
    deltas = [{"content": [{"type": "thinking", "thinking": []}]}, {"content": "x"}]
    chunks: list[Any] = [{"model": "big", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"model": "big", "choices": None, "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    play = Play([*events, b"data: [DONE]\n\n"], content_type="text/event-stream")
    async with rigged(tmp_path, lambda seen: play) as rig:
        found = await rig.chat(stream=True)
        assert found.status_code == 200, found.text
        reported = [json.loads(line[6:]) for line in found.text.split("\n\n")[:2]]
        assert [one["choices"][0]["delta"] for one in reported] == deltas
        assert rig.gateway.records.all[0].usage.completion_tokens == 2


SPEAKS = ["chat/completions", "completions"]


async def test_llama_cpps_limit_is_renamed(tmp_path: Path) -> None:
    """Most providers ignore it, and the request was admitted by it."""
    async with rigged(tmp_path, scripted) as rig:
        await rig.chat(n_predict=7)
        await rig.chat(n_predict=None)
        refused = await rig.chat(n_predict=7, max_tokens=1)
        assert [seen.body.get("max_tokens") for seen in rig.fake.seen] == [7, None]
        assert not any("n_predict" in seen.body for seen in rig.fake.seen)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n_predict")


@pytest.mark.parametrize("bound", ["max_completion_tokens", "max_tokens"])
async def test_the_bound_of_other_dialects_has_the_providers_name(tmp_path: Path, bound: str) -> None:
    """OpenAI's newer models refuse `max_tokens`, so that no client of Ollama or Cohere could bound an answer."""
    async with rigged(tmp_path, scripted, bound=bound) as rig:
        hi = [{"role": "user", "content": "hi"}]
        await rig.http.post("/api/chat", json={"model": "there/big", "messages": hi, "options": {"num_predict": 7}})
        await rig.http.post("/v2/chat", json={"model": "there/big", "messages": hi, "max_tokens": 7})
        await rig.chat(max_tokens=7)
        sent = [{name: value for name, value in seen.body.items() if name.startswith("max")} for seen in rig.fake.seen]
        assert sent == [{bound: 7}, {bound: 7}, {"max_tokens": 7}]


@pytest.mark.parametrize(
    ("prompt", "model", "most"),
    [
        ("a" * 99, {"context_length": 2000}, 2000 - 50),
        ("a" * 99, {"context_length": 200_000}, 4096),
        ("a" * 99, {"context_length": 200_000, "max_output": 9000}, 9000),
        ("a" * 4999, {"context_length": 2000}, 16),
        ("a", {}, None),
    ],
    ids=["short", "as much as it makes", "as much as its recipe says", "full", "unknown"],
)
async def test_a_raw_prompt_requests_at_most_the_rest_of_the_context(
    tmp_path: Path, prompt: str, model: dict[str, Any], most: int | None
) -> None:
    """Local models cut a larger limit, but a provider would refuse it."""
    answer = {"choices": [{"text": "b", "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}, "model": "big"}
    play = Play([json.dumps(answer).encode()])
    async with rigged(tmp_path, lambda seen: play, models=[{"name": "big", **model}], speaks=SPEAKS) as rig:
        body = {"model": "there/big", "prompt": prompt, "raw": True, "stream": False}
        found = await rig.http.post("/api/generate", json=body)
        await rig.http.post("/generate", json={"model": "there/big", "inputs": prompt})
        assert rig.fake.seen[0].body.get("max_tokens") == most, found.text
        assert rig.fake.seen[1].body["max_tokens"] == min(1024, most or 1024)


async def test_messages_are_passed_on(tmp_path: Path) -> None:
    def script(seen: Seen) -> Play:
        return traces.message_stream("big") if seen.body.get("stream") else traces.message("big")

    async with rigged(tmp_path, script, "anthropic") as rig, rig.anthropic() as client:
        requested: Any = {"model": "there/big", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        found = await client.messages.create(**requested)
        assert (found.model, found.content[0].type, found.usage.output_tokens) == ("there/big", "text", 5)
        async with client.messages.stream(**requested) as stream:
            final = await stream.get_final_message()
        assert (final.model, final.usage.input_tokens, final.usage.output_tokens) == ("there/big", 8, 5)
        assert rig.fake.seen[0].headers["x-api-key"] == KEY
        assert rig.fake.seen[0].headers["anthropic-version"] == "2023-06-01"
        assert "authorization" not in rig.fake.seen[0].headers
        usages = [record.usage for record in rig.gateway.records.all]
        assert {(u.prompt_tokens, u.completion_tokens, u.cached_tokens) for u in usages} == {(12, 5, 4)}


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
async def test_a_stream_counts_as_many_tokens_as_its_provider_reported(tmp_path: Path, protocol: str) -> None:
    """The events were counted if there were more of them: five instead of two for a short answer of Anthropic."""

    def script(seen: Seen) -> Play:
        play = traces.message_stream("big") if seen.path.endswith("messages") else traces.chat_stream("big")
        tokens = (
            (b'"output_tokens": 5', b'"output_tokens": 2'),
            (b'"completion_tokens": 5, "total_tokens": 17', b'"completion_tokens": 2'),
        )
        for reported, fewer in tokens:
            play.parts = [part.replace(reported, fewer) for part in list(play.parts)]  # type: ignore[call-overload]
        return play

    async with rigged(tmp_path, script, protocol) as rig, rig.anthropic() as client:
        requested: Any = {"model": "there/big", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        async with client.messages.stream(**requested) as stream:
            assert (await stream.get_final_message()).usage.output_tokens == 2
        assert rig.gateway.records.all[0].usage.completion_tokens == 2


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
async def test_anthropics_beta_header_is_passed_on(tmp_path: Path, protocol: str) -> None:
    """Claude Code's requests have fields that are refused without this header."""

    def script(seen: Seen) -> Play:
        return traces.message("big") if seen.path.endswith("messages") else traces.chat("big")

    async with rigged(tmp_path, script, protocol) as rig, rig.anthropic() as client:
        requested: Any = {"model": "there/big", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        await client.beta.messages.create(**requested, betas=["context-management-2025-06-27", "other-2026-01-01"])
        await client.messages.create(**requested)
        reported = [seen.headers.get("anthropic-beta") for seen in rig.fake.seen]
        assert reported == ["context-management-2025-06-27,other-2026-01-01" if protocol == "anthropic" else None, None]


@pytest.mark.parametrize("given", ["numbers", "base64"])
async def test_embeddings_are_passed_on(tmp_path: Path, given: str) -> None:
    rows = np.array([[1.0, 0.0], [0.6, 0.8]], "<f4")

    def script(seen: Seen) -> Play:
        reported = [row.tolist() if given == "numbers" else base64.b64encode(row.tobytes()).decode() for row in rows]
        data = [{"object": "embedding", "index": i, "embedding": v} for i, v in reversed(list(enumerate(reported)))]
        usage = {"prompt_tokens": 7, "total_tokens": 7}
        return Play([json.dumps({"object": "list", "data": data, "model": "embed", "usage": usage}).encode()])

    async with rigged(tmp_path, script) as rig, rig.openai() as client:
        found = await client.embeddings.create(model="there/embed", input=["a", "b"], dimensions=2)
        assert np.allclose([item.embedding for item in found.data], rows)
        assert found.usage.prompt_tokens == 7
        body = rig.fake.seen[0].body
        assert body == {"model": "embed", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 2}
        ollamas = await rig.http.post("/api/embed", json={"model": "there/embed", "input": ["a", "b"]})
        assert ollamas.status_code == 200, ollamas.text
        assert rig.fake.seen[-1].body == {"model": "embed", "input": ["a", "b"], "encoding_format": "base64"}
        for stated, sent in (("search_query", "query"), ("search_document", "document"), ("passage", "document")):
            body = {"model": "there/embed", "input": ["a", "b"], "input_type": stated}
            await rig.http.post("/v1/embeddings", json=body)
            assert rig.fake.seen[-1].body["input_type"] == sent


async def test_vectors_have_length_one_and_finite_values(tmp_path: Path) -> None:
    """Gemini's have another length if they are shortened. Infinite ones were a failure of this server's engine."""
    answers = [[[3, 4], [0, 0], [0.6, 0.8]], [[1e300, 0], [0, 1], [0, 1]]]

    def script(seen: Seen) -> Play:
        vectors = answers[len(rig.fake.seen) - 1]
        return Play([json.dumps({"data": [{"index": i, "embedding": one} for i, one in enumerate(vectors)]}).encode()])

    async with rigged(tmp_path, script) as rig:
        requested = {"model": "there/embed", "input": ["a", "b", "c"]}
        found = (await rig.http.post("/v1/embeddings", json=requested)).json()
        assert [one["embedding"] for one in found["data"]] == [[0.6, 0.8], [0.0, 0.0], [0.6, 0.8]]
        refused = await rig.http.post("/v1/embeddings", json=requested)
        assert (refused.status_code, refused.json()["error"]["code"]) == (502, "provider_answer")


async def test_a_ranking_is_passed_on_in_order(tmp_path: Path) -> None:
    scores = [0.25, 0.999, 0.0]
    results = [{"index": i, "relevance_score": s} for i, s in enumerate(scores)]
    answer = json.dumps({"results": results, "usage": {"total_tokens": 9}}).encode()
    async with rigged(tmp_path, lambda seen: Play([answer])) as rig:
        requested = {"model": "there/rerank", "query": "q", "documents": ["a", "b", "c"]}
        found = (await rig.http.post("/v1/rerank", json=requested)).json()
        assert [item["index"] for item in found["results"]] == [1, 0, 2]
        reported = [item["relevance_score"] for item in found["results"]]
        assert all(math.isclose(a, b, abs_tol=1e-12) for a, b in zip(reported, [0.999, 0.25, 0.0], strict=True))
        refused = await rig.http.post("/v1/rerank", json={**requested, "max_tokens_per_doc": 5})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_value")


@pytest.mark.parametrize(
    "reported",
    [
        {"results": None, "usage": {"total_tokens": 9}},
        {"data": None, "usage": {"total_tokens": 9}},
        {"results": None, "meta": {"tokens": {"input_tokens": 9}}},
        {"results": None, "usage": {"prompt_tokens": 9, "total_tokens": None}},
    ],
    ids=["Jina", "Voyage", "SiliconFlow", "null"],
)
async def test_rankings_of_other_servers_are_read(tmp_path: Path, reported: dict[str, Any]) -> None:
    rows = [{"index": 1, "relevance_score": 0.75}, {"index": 0, "relevance_score": 0.25}]
    answer = {name: rows if value is None else value for name, value in reported.items()}
    async with rigged(tmp_path, lambda seen: Play([json.dumps(answer).encode()])) as rig:
        requested = {"model": "there/rerank", "query": "q", "documents": ["a", "b"]}
        found = (await rig.http.post("/v1/rerank", json=requested)).json()
        assert [item["index"] for item in found["results"]] == [1, 0]
        assert rig.gateway.records.all[0].usage.prompt_tokens == 9


@pytest.mark.parametrize(
    ("scores", "reported"),
    [
        ([-11.5, 0.5, 3.0], [1 / (1 + math.exp(11.5)), 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(-3.0))]),
        ([-1e300, 0.0, 1e300], [0.0, 0.5, 1.0]),
        ([1.5, 0.25], None),
        ([1.5, 0.25, "1e999"], None),
    ],
    ids=["logits", "huge", "one is missing", "infinite"],
)
async def test_scores_in_logits_are_normalised(tmp_path: Path, scores: list[Any], reported: list[float] | None) -> None:
    rows = ", ".join(f'{{"index": {i}, "relevance_score": {score}}}' for i, score in enumerate(scores))
    async with rigged(tmp_path, lambda seen: Play([f'{{"results": [{rows}]}}'.encode()])) as rig:
        requested = {"model": "there/rerank", "query": "q", "documents": ["a", "b", "c"]}
        found = await rig.http.post("/v1/rerank", json=requested)
        if reported is None:
            assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_answer")
        else:
            by_index = {item["index"]: item["relevance_score"] for item in found.json()["results"]}
            assert [by_index[index] for index in range(3)] == pytest.approx(reported, abs=1e-12)


async def test_a_reranker_of_text_embeddings_inference_is_used(tmp_path: Path) -> None:
    """Its requests have `texts`, and its answers are bare lists."""
    rows = [{"index": 1, "score": 0.75}, {"index": 0, "score": 0.25}]
    models = [{"name": "bge", "task": "rerank", "texts": True}]
    async with rigged(
        tmp_path, lambda seen: Play([json.dumps(rows).encode()]), models=models, speaks=["rerank"]
    ) as rig:
        requested = {"model": "there/bge", "query": "q", "documents": ["a", "b"]}
        found = (await rig.http.post("/v1/rerank", json={**requested, "truncate": True})).json()
        assert [item["index"] for item in found["results"]] == [1, 0]
        assert [item["relevance_score"] for item in found["results"]] == pytest.approx([0.75, 0.25])
        assert rig.fake.seen[-1].body == {"query": "q", "texts": ["a", "b"], "truncate": True}
        refused = await rig.http.post("/v1/rerank", json={**requested, "max_tokens_per_doc": 5})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_value")


async def test_a_transcription_is_passed_on(tmp_path: Path) -> None:
    segments = [{"id": 0, "start": 0.0, "end": 1.5, "text": " two words", "tokens": [1], "seek": 0}]
    answer = {"text": "two words", "language": "english", "duration": 1.5, "segments": segments}
    async with rigged(tmp_path, lambda seen: Play([json.dumps(answer).encode()])) as rig:
        form = {"model": "there/transcribe", "response_format": "verbose_json", "language": "en"}
        found = await rig.http.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", b"RIFFdata")})
        assert found.status_code == 200, found.text
        assert (found.json()["text"], found.json()["duration"]) == ("two words", 1.5)
        assert b"RIFFdata" in rig.fake.seen[0].body
        assert b"verbose_json" in rig.fake.seen[0].body
        assert rig.gateway.records.all[-1].usage.audio_seconds == 1.5


@pytest.mark.parametrize(
    ("has_times", "answer", "status", "code"),
    [
        (True, {"segments": [{"start": 0.5, "end": 1.5, "text": "two words"}]}, 200, None),
        (True, {"duration": 1.5}, 502, "provider_answer"),
        (False, {}, 400, "unsupported_value"),
    ],
)
async def test_subtitles_have_the_providers_times_or_none(
    tmp_path: Path, has_times: bool, answer: dict[str, Any], status: int, code: str | None
) -> None:
    """Without them, the whole text was one cue from 0 to 0."""
    models = [{"name": "transcribe", "task": "transcribe", "segments": has_times}]
    play = Play([json.dumps({"text": "two words", **answer}).encode()])
    async with rigged(tmp_path, lambda seen: play, models=models) as rig:
        form = {"model": "there/transcribe", "response_format": "srt"}
        found = await rig.http.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", b"RIFFdata")})
        assert found.status_code == status, found.text
        if code is None:
            assert found.text == "1\n00:00:00,500 --> 00:00:01,500\ntwo words\n\n"
        else:
            assert found.json()["error"]["code"] == code
        silent = Play([b'{"text": ""}'])
        rig.fake.script = lambda seen: silent
        found = await rig.http.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", b"RIFFdata")})
        assert (found.status_code, found.content) == ((200, b"") if has_times else (400, found.content))


NULLS = dict.fromkeys(["tokens", "temperature", "avg_logprob", "compression_ratio", "no_speech_prob", "seek"])
TIMED = [{"word": " two", "start": 0.0, "end": 0.7, "probability": 0.9}, {"word": " words", "start": 0.7, "end": 1.5}]


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        ({"language": "en", "duration": 1.5, "segments": [{"end": 1.5, "text": "two words", **NULLS}]}, []),
        ({"language": None, "duration": "1.5", "segments": None, "words": None}, []),
        ({"duration": 1.5, "segments": [{"end": 1.5, "text": "two words", "words": TIMED}]}, ["two", "words"]),
    ],
    ids=["vLLM", "older ones", "whisper.cpp"],
)
async def test_transcripts_of_other_servers_are_read(
    tmp_path: Path, reported: dict[str, Any], words: list[str]
) -> None:
    async with rigged(tmp_path, lambda seen: Play([json.dumps({"text": "two words", **reported}).encode()])) as rig:
        form = {"model": "there/transcribe", "response_format": "verbose_json", "timestamp_granularities[]": "word"}
        found = await rig.http.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", b"RIFFdata")})
        assert found.status_code == 200, found.text
        assert (found.json()["text"], found.json()["duration"]) == ("two words", 1.5)
        assert [word["word"] for word in found.json().get("words", [])] == words


@pytest.mark.parametrize(("temperature", "is_sent"), [(None, False), ("0", False), ("0.4", True)])
async def test_the_temperature_of_a_transcription_is_passed_on(
    tmp_path: Path, temperature: str | None, is_sent: bool
) -> None:
    async with rigged(tmp_path, lambda seen: Play([b'{"text": "x", "duration": 1.5}'])) as rig:
        form = {"model": "there/transcribe", **({} if temperature is None else {"temperature": temperature})}
        found = await rig.http.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", b"RIFFdata")})
        assert found.status_code == 200, found.text
        assert (b'name="temperature"' in rig.fake.seen[0].body) is is_sent
        assert (b"0.4" in rig.fake.seen[0].body) is is_sent


async def test_no_word_of_a_transcript_is_lost_between_its_segments(tmp_path: Path) -> None:
    """OpenAI's times of words and of segments differ slightly."""
    segments = [
        {"start": start, "end": end, "text": words}
        for start, end, words in ((0.5, 1.0, "a b"), (2.0, 3.0, "c d"), (2.5, 3.5, "e"))
    ]
    times = {"a": 0.4, "b": 0.6, "c": 1.5, "d": 2.0, "e": 2.7, "f": 9.0}
    words = [{"word": word, "start": start, "end": start + 0.1} for word, start in times.items()]
    answer = {"text": "a b c d e f", "duration": 9.5, "segments": segments, "words": words}
    async with rigged(tmp_path, lambda seen: Play([json.dumps(answer).encode()])) as rig:
        form = {"model": "there/transcribe", "response_format": "verbose_json", "timestamp_granularities[]": "word"}
        found = await rig.http.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", b"RIFFdata")})
        assert [word["word"] for word in found.json()["words"]] == list(times)
        silent = {"text": "", "duration": 9.5, "segments": [], "words": words}
        rig.fake.script = lambda seen: Play([json.dumps(silent).encode()])
        found = await rig.http.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", b"RIFFdata")})
        assert found.json()["words"] == []


@pytest.mark.parametrize(
    ("beginning", "name"),
    [
        (b"RIFF\x24\x00\x00\x00WAVE", "recording.wav"),
        (b"ID3\x04", "recording.mp3"),
        (b"\xff\xfb\x90", "recording.mp3"),
        (b"\x00\x00\x00\x20ftypM4A ", "recording.mp4"),
        (b"\x1aE\xdf\xa3\x9f", "recording.webm"),
        (b"OggS", "recording.ogg"),
        (b"fLaC", "recording.flac"),
        (b"other", "recording"),
    ],
)
async def test_a_recording_is_named_by_its_format(tmp_path: Path, beginning: bytes, name: str) -> None:
    """OpenAI uses the extension of the name, while clients send any name or none."""
    async with rigged(tmp_path, lambda seen: Play([b'{"text": "two words", "duration": 1.5}'])) as rig:
        form: Any = {"data": {"model": "there/transcribe"}, "files": {"file": ("a", beginning + bytes(20))}}
        assert (await rig.http.post("/v1/audio/transcriptions", **form)).status_code == 200
        assert f'filename="{name}"'.encode() in rig.fake.seen[0].body
        assert beginning + bytes(20) in rig.fake.seen[0].body


TOKENS = {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}


@pytest.mark.parametrize(
    ("reported", "usage", "counted"),
    [
        ({"usage": TOKENS}, TOKENS, Usage(prompt_tokens=14, completion_tokens=45, audio_seconds=2.0)),
        ({}, None, Usage(audio_seconds=2.0)),
        ({"duration": 1.5, "usage": {"type": "duration", "seconds": 2}}, {"type": "duration", "seconds": 2},
         Usage(audio_seconds=1.5)),
        ({"segments": [{"start": 0.0, "end": 1.2, "text": "two words"}]}, {"type": "duration", "seconds": 2},
         Usage(audio_seconds=1.2)),
    ],
    ids=["tokens", "nothing", "both", "segments"],
)  # fmt: skip
async def test_the_usage_of_a_transcription_is_counted(
    tmp_path: Path, reported: dict[str, Any], usage: dict[str, Any] | None, counted: Usage
) -> None:
    """In seconds or tokens. Without a reported length, the reserved one counts, which is 2 s for 1,000 bytes."""
    async with rigged(tmp_path, lambda seen: Play([json.dumps({"text": "two words", **reported}).encode()])) as rig:
        requested: Any = {"data": {"model": "there/transcribe"}, "files": {"file": ("a.ogg", bytes(1000))}}
        found = await rig.http.post("/v1/audio/transcriptions", **requested)
        assert found.json() == {"text": "two words", **({} if usage is None else {"usage": usage})}
        assert rig.gateway.records.all[-1].usage == counted


async def test_a_translation_requires_a_provider_that_translates(tmp_path: Path) -> None:
    speaks = ["chat/completions", "embeddings", "rerank", "audio/transcriptions"]
    answer = Play([json.dumps({"text": "two words", "duration": 1.5}).encode()])
    requested: Any = {"data": {"model": "there/transcribe"}, "files": {"file": ("a.wav", b"RIFFdata")}}
    async with rigged(tmp_path, lambda seen: answer) as rig:
        assert (await rig.http.post("/v1/audio/translations", **requested)).status_code == 200
        assert [seen.path for seen in rig.fake.seen] == ["/v1/audio/translations"]
    async with rigged(tmp_path, lambda seen: answer, speaks=speaks) as rig:
        error = (refused := await rig.http.post("/v1/audio/translations", **requested)).json()["error"]
        assert (refused.status_code, error["code"]) == (400, "unsupported_endpoint")
        assert "does not answer /v1/audio/translations" in error["message"]
        assert rig.fake.seen == []
        assert (await rig.http.post("/v1/audio/transcriptions", **requested)).status_code == 200


async def test_the_clients_own_fault_is_reported_in_its_dialect(tmp_path: Path) -> None:
    async with rigged(tmp_path, lambda seen: traces.error(400, "invalid_request_error", "too_long")) as rig:
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (400, "too_long")
        assert rig.gateway.records.all[0].end is End.REFUSED


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "too long", "type": "invalid_request_error", "code": None}},
        {"object": "error", "message": "too long", "type": "BadRequestError", "param": None, "code": 400},
        {"detail": "too long"},
        {"detail": [{"type": "missing", "msg": "too long", "input": {}}]},
        {"object": "error", "message": {"detail": [{"msg": "too long"}]}, "type": "invalid_request_error"},
        "too long",
        [{"error": {"code": 400, "message": "too long", "status": "INVALID_ARGUMENT"}}],
        {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}},
    ],
    ids=["OpenAI", "SGLang", "FastAPI", "FastAPI's list", "Mistral", "a text", "Google", "Anthropic"],
)
async def test_error_messages_of_every_provider_are_found(tmp_path: Path, body: Any) -> None:
    reported = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    async with rigged(tmp_path, lambda seen: Play([reported], status=400)) as rig:
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["message"]) == (400, "too long")
        assert found.json()["error"]["type"]
        requested = {"model": "there/big", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        found = await rig.http.post("/v1/messages", json=requested)
        assert (found.json()["type"], found.json()["error"]["message"]) == ("error", "too long")
        found = await rig.http.post("/api/chat", json=requested)
        assert (found.status_code, found.json()) == (400, {"error": "too long"})


@pytest.mark.parametrize("body", [b"", b"<html>nginx</html>", b"\xff\xfe"])
async def test_a_web_page_as_a_refusal_is_not_passed_on(tmp_path: Path, body: bytes) -> None:
    async with rigged(tmp_path, lambda seen: Play([body], status=413, content_type="text/html")) as rig:
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["message"]) == (
            413, "The provider refused this request with status 413.",
        )  # fmt: skip


async def test_a_models_id_and_aliases_become_its_name_at_the_provider(tmp_path: Path) -> None:
    async with rigged(tmp_path, scripted, models=[{"name": "org/big:1", "id": "small", "aliases": ["handy"]}]) as rig:
        assert (await rig.chat("there/small")).json()["model"] == "there/small"
        assert (await rig.chat("handy")).json()["model"] == "handy"
        assert [seen.body["model"] for seen in rig.fake.seen] == ["org/big:1", "org/big:1"]
        unknown = await rig.chat("there/smal")
        assert unknown.status_code == 404
        assert "there/small" in unknown.json()["error"]["message"]
        wrong = await rig.http.post("/v1/embeddings", json={"model": "handy", "input": "a"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "wrong_task")


async def test_a_provider_may_have_the_id_local(tmp_path: Path) -> None:
    async with rigged_with(tmp_path, {"local": (scripted, "openai", {})}) as rig:
        assert (await rig.chat("local/big")).json()["model"] == "local/big"


async def test_the_error_of_a_long_unknown_name_is_cheap(tmp_path: Path) -> None:
    """Comparing two million letters with 200 names blocked the event loop for a second."""
    async with rigged(tmp_path, scripted, models=[{"name": f"model-{n}"} for n in range(200)]) as rig:
        await rig.chat("there/model")
        with processor_time() as seconds:
            unknown = await rig.chat("there/" + "model-ab1" * 200_000)
            assert seconds() < 0.3
        assert unknown.status_code == 404


async def test_a_tag_in_a_models_name_is_kept(tmp_path: Path) -> None:
    """Ollama's models have a tag, and its clients add one to names without."""
    models = [{"name": "big:latest"}, {"name": "small"}]
    async with rigged(tmp_path, scripted, models=models) as rig:
        for name in ("there/big:latest", "there/small", "there/small:latest"):
            body = {"model": name, "stream": False, "messages": [{"role": "user", "content": "hi"}]}
            found = await rig.http.post("/api/chat", json=body)
            assert (found.status_code, found.json().get("model")) == (200, name), found.text
        assert [seen.body["model"] for seen in rig.fake.seen] == ["big:latest", "small", "small"]
