"""Unknown fields of a dialect are left out with a warning, or refused for strict clients or if they matter."""

from typing import Any

import httpx
import numpy as np
import pytest

from models.messages import Chunk, EmbedResult, Event, ResponseEnd, ResponseStart, Usage
from registry.errors import RoundhouseError
from tests.unit.http.audio.script import SCRIPT, WAV
from tests.unit.http.fakes import FakeGateway
from tests.unit.http.rerank.script import answer as ranked

VECTORS = {"model": "embed", "input": ["a", "b"]}
PAIR = {"model": "rerank", "query": "q", "documents": ["low", "high"]}
HELLO = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": False}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": VECTORS,
    "/embed": {"model": "embed", "inputs": ["a", "b"]},
    "/api/embed": VECTORS,
    "/v1/embed": {"model": "embed", "texts": ["a", "b"]},
    "/v2/embed": {"model": "embed", "texts": ["a", "b"], "input_type": "search_query"},
    "/v1/rerank": PAIR,
    "/v2/rerank": PAIR,
    "/rerank": {"model": "rerank", "query": "q", "texts": ["low", "high"]},
    "/score": {"model": "rerank", "text_1": "q", "text_2": ["low", "high"]},
    "/v2/chat": {**HELLO, "stream": None},
    "/api/chat": HELLO,
}
CHANGING = {
    "/v1/embeddings": "output_dtype",
    "/embed": "late_chunking",
    "/v1/rerank": "instruction",
    "/v2/rerank": "min_score",
    "/rerank": "top_k",
    "/score": "task",
}
SPEECH = "/v1/audio/transcriptions"
WARNING = "X-Roundhouse-Warning"


def vectors(_: object) -> list[Event | RoundhouseError]:
    found = EmbedResult(vectors=np.ones((2, 2), "f4").tobytes(), dimensions=2, tokens=[1, 1])
    return [found, ResponseEnd(usage=Usage())]


def chat_answer(_: object) -> list[Event | RoundhouseError]:
    choice = b'{"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}'
    started = ResponseStart(200, "application/json", warning="the engine did something else")
    return [started, Chunk(data=b'{"choices":[%s],"usage":{"prompt_tokens":1,"completion_tokens":1}}' % choice)]


@pytest.fixture(autouse=True)
def scripted(gateway: FakeGateway) -> None:
    gateway.links["embed"].script = vectors
    gateway.links["rerank"].script = ranked
    gateway.links["chat"].script = chat_answer
    gateway.links["speech"].script = lambda _: SCRIPT


async def ask(client: httpx.AsyncClient, path: str, more: dict[str, Any], **headers: str) -> httpx.Response:
    if path == SPEECH:
        form = {"model": "speech", **{name: str(value) for name, value in more.items()}}
        return await client.post(path, data=form, files={"file": ("a.wav", WAV)}, headers=headers)
    return await client.post(path, json={**BODIES[path], **more}, headers=headers)


@pytest.mark.parametrize("path", [*BODIES, SPEECH])
async def test_an_unknown_field_is_named_in_a_warning_and_refused_for_the_strict(
    client: httpx.AsyncClient, path: str
) -> None:
    plain, odd = await ask(client, path, {}), await ask(client, path, {"client_metadata": 1})
    assert (plain.status_code, odd.status_code) == (200, 200), odd.text
    assert "client_metadata" not in plain.headers.get(WARNING, "")
    assert "left out, as they have no effect here: client_metadata" in odd.headers[WARNING]
    if "chat" in path:
        assert odd.headers[WARNING].endswith("; the engine did something else")
    refused = await ask(client, path, {"client_metadata": 1}, Prefer="handling=strict")
    assert refused.status_code in (400, 422)
    assert "'client_metadata' has no effect here: leave it out." in refused.text
    if path != SPEECH:  # forms have no null
        assert WARNING not in (await ask(client, path, {"client_metadata": None})).headers or "chat" in path


@pytest.mark.parametrize("path", CHANGING)
async def test_a_field_that_would_change_the_answer_is_refused_by_name(client: httpx.AsyncClient, path: str) -> None:
    refused = await ask(client, path, {CHANGING[path]: 3})
    assert refused.status_code in (400, 422)
    assert f"'{CHANGING[path]}' would change the answer" in refused.text
    assert (await ask(client, path, {CHANGING[path]: None})).status_code == 200


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/embeddings", {"add_special_tokens": True, "normalized": True, "embedding_type": "float"}),
        ("/v1/embeddings", {"modality": "text", "late_chunking": False, "output_dtype": "float", "prompt": ""}),
        ("/v1/embeddings", {"embed_dtype": "float32", "endianness": "native", "use_activation": True}),
        ("/v1/embeddings", {"embd_normalize": 2, "truncation_side": "right"}),
        ("/v1/rerank", {"truncation_side": "right", "chat_template_kwargs": {}}),
        ("/v2/rerank", {"truncation_side": "right"}),
        ("/rerank", {"truncation_side": "right"}),
        ("/score", {"truncation_side": "right"}),
        ("/embed", {"modality": "text"}),
        (SPEECH, {"diarize": "False", "word_timestamps": "0", "offset_t": "0", "task": "transcribe"}),
        (SPEECH, {"translate": "false", "diarization": "false", "timestamp_granularities[]": "segment"}),
    ],
)
async def test_a_field_that_requests_the_default_behaviour_is_accepted(
    client: httpx.AsyncClient, path: str, more: dict[str, Any]
) -> None:
    answer = await ask(client, path, more, Prefer="handling=strict")
    assert (answer.status_code, answer.headers.get(WARNING)) == (200, None), answer.text


@pytest.mark.parametrize(
    ("path", "name", "words"),
    [
        ("/v1/embeddings", "output_dimension", "send 'dimensions'"),
        ("/v1/embeddings", "task", "send 'input_type'"),
        ("/embed", "task", "send 'prompt_name'"),
        ("/v1/rerank", "top_k", "send 'top_n'"),
        (SPEECH, "lang", "send 'language'"),
        (SPEECH, "translate", "send the recording to /v1/audio/translations"),
        (SPEECH, "task", "send the recording to /v1/audio/transcriptions or /v1/audio/translations"),
    ],
)
async def test_a_field_with_another_name_here_is_refused_with_that_name(
    client: httpx.AsyncClient, path: str, name: str, words: str
) -> None:
    refused = await ask(client, path, {name: 3})
    assert refused.status_code == 400
    assert f"'{name}' has another name here: {words}." in refused.text


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("/v1/embeddings", "modality", "image"),
        ("/v1/embeddings", "normalize", False),
        ("/v1/embeddings", "embed_dtype", "float16"),
        ("/v1/embeddings", "endianness", "big"),
        ("/v1/embeddings", "use_activation", False),
        ("/v1/embeddings", "embd_normalize", -1),
        ("/v1/embeddings", "truncation_side", "left"),
        ("/v1/embeddings", "lora_path", "legal"),
        ("/v1/embeddings", "embed_overrides", [[[0.5]]]),
        ("/embed", "late_chunking", True),
        ("/v1/rerank", "instruct", "Find laws."),
        ("/v1/rerank", "truncation_side", "left"),
        ("/v1/rerank", "chat_template_kwargs", {"instruction": "x"}),
        ("/rerank", "truncation_side", "left"),
        ("/score", "truncation_side", "left"),
        (SPEECH, "diarize", "true"),
        (SPEECH, "offset_t", "30000"),
        (SPEECH, "diarization", "true"),
    ],
)
async def test_a_field_that_requests_other_behaviour_is_refused(
    client: httpx.AsyncClient, path: str, name: str, value: Any
) -> None:
    refused = await ask(client, path, {name: value})
    assert refused.status_code == 400
    assert f"'{name}' would change the answer" in refused.text


async def test_a_repeated_form_field_with_one_value_is_refused(client: httpx.AsyncClient) -> None:
    assert (await ask(client, SPEECH, {"temperature[]": "0.2"})).status_code == 200
    twice = await ask(client, SPEECH, {"temperature": "0.2", "temperature[]": "0.4"})
    assert twice.json()["error"]["message"] == "'temperature' was sent 2 times."


async def test_options_of_ollama_are_refused_for_the_strict(client: httpx.AsyncClient) -> None:
    options = {"options": {"mirostat": 1, "temperature": 0}}
    assert "options.mirostat" in (await ask(client, "/api/chat", options)).headers[WARNING]
    refused = await ask(client, "/api/chat", options, Prefer="handling=strict")
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        "'options.mirostat' has no effect here: leave it out.",
    )
