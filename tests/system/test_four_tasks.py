"""Chat with adapters, embeddings, rerank and speech by the official client, on the starter models."""

import base64
import json
import os
import struct
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from openai import OpenAI

from tests.eventually import PATIENCE, eventually
from tests.system.serving import PACK, STARTER, Server

pytestmark = pytest.mark.real
AS_JSON = {"Content-Type": "application/json"}
SAMPLES = sorted((PACK / "samples").glob("*.wav"))


def ask(client: OpenAI, model: str, text: str) -> str:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], temperature=0, max_tokens=100
    )
    return answer.choices[0].message.content or ""


def test_the_base_talks(client: OpenAI) -> None:
    assert len(ask(client, "starter-chat", "hello")) > 3
    assert ask(client, "chat", "hello") == ask(client, "starter-chat", "hello")  # an alias


def test_each_adapter_does_its_own_task(client: OpenAI) -> None:
    assert ask(client, "uppercase", "hello world") == "HELLO WORLD"
    assert ask(client, "starter-chat:acronym", "good green house") == "GGH"
    assert ask(client, "last-word@v1", "the quick brown fox") == "fox"


def test_twenty_adapters_and_the_base_mixed_answer_as_alone(client: OpenAI, server: Server) -> None:
    """No wrong weights: what each model says in a crowded batch is what it says alone."""
    names = [m["id"] for m in server.http.get("/v1/models").json()["data"] if m.get("parent") == "starter-chat"]
    assert len(names) == 20
    text = "seven small boats"
    alone = {name: ask(client, name, text) for name in [*names, "starter-chat"]}
    with ThreadPoolExecutor(24) as pool:
        crowd = [*alone] * 3
        mixed = list(pool.map(lambda name: (name, ask(client, name, text)), crowd))
    assert dict(mixed) == alone
    assert [pair for pair in mixed if pair[1] != alone[pair[0]]] == []
    assert len(set(alone.values())) >= 12


def test_headers_name_the_weights(server: Server) -> None:
    body = {"model": "uppercase", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
    answer = server.http.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-roundhouse-model"].startswith("starter-chat@")
    digest = server.http.get("/v1/adapters/uppercase").json()["digest"]
    assert answer.headers["x-roundhouse-adapter"] == f"uppercase@{digest}"
    assert {part.split(";")[0].strip() for part in answer.headers["server-timing"].split(",")} == {
        "queue", "load", "swap", "first",
    }  # fmt: skip
    assert answer.json()["model"] == "uppercase"


def test_streaming_with_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="uppercase",
        messages=[{"role": "user", "content": "hello world"}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "HELLO WORLD"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len("HELLO WORLD") + 1
    plain = client.chat.completions.create(
        model="uppercase", messages=[{"role": "user", "content": "hello world"}], temperature=0, stream=True
    )
    assert all(c.usage is None for c in plain)


def test_completions_responses_messages_and_tokens(client: OpenAI, server: Server) -> None:
    assert client.completions.create(model="starter-chat", prompt="hi", max_tokens=3).choices[0].finish_reason
    assert client.responses.create(model="uppercase", input="hello", max_output_tokens=20).output_text == "HELLO"
    body = {"model": "uppercase", "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}
    message = server.http.post("/v1/messages", json=body).json()
    assert message["content"][0]["text"] == "HELLO"
    assert server.http.post("/v1/messages/count_tokens", json=body).json()["input_tokens"] > 5
    tokens = server.http.post("/tokenize", json={"model": "starter-chat", "prompt": "abc"}).json()
    assert tokens["count"] >= 3


def test_similar_texts_have_similar_vectors(client: OpenAI) -> None:
    texts = ["a cat sat on the mat", "a kitten rests on a rug", "quarterly revenue grew"]
    answer = client.embeddings.create(model="starter-embed", input=texts, encoding_format="float")
    assert [d.index for d in answer.data] == [0, 1, 2]
    a, b, c = (d.embedding for d in answer.data)
    assert len(a) == 384

    def dot(x: list[float], y: list[float]) -> float:
        return sum(i * j for i, j in zip(x, y, strict=True))

    assert dot(a, a) == pytest.approx(1.0, abs=1e-4)
    assert dot(a, b) > 0.5 > dot(a, c)
    coded = client.with_options().post(
        "/embeddings", body={"model": "embed", "input": texts[0], "encoding_format": "base64"}, cast_to=httpx.Response
    )
    raw = base64.b64decode(json.loads(coded.text)["data"][0]["embedding"])
    assert struct.unpack("<384f", raw) == pytest.approx(a, abs=1e-5)


def test_the_document_that_answers_comes_first(server: Server) -> None:
    body = {
        "model": "starter-rerank",
        "query": "What is the capital of France?",
        "documents": ["Bananas are yellow.", "Paris is the capital of France.", "Berlin is in Germany."],
        "top_n": 2,
        "return_documents": True,
    }
    answer = server.http.post("/v1/rerank", json=body).json()
    assert next(r["index"] for r in answer["results"]) == 1
    assert len(answer["results"]) == 2
    assert all(0 <= r["relevance_score"] <= 1 for r in answer["results"])


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_transcription_of_the_samples(client: OpenAI, path: Path) -> None:
    expected = path.with_suffix(".txt").read_text().strip()
    answer = client.audio.transcriptions.create(model="starter-speech", file=path)
    assert answer.text.strip().lower() == expected.lower()


def test_silence_is_an_empty_text(client: OpenAI, tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.wav"
    with wave.open(str(quiet), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(2 * 16000 * 2))
    assert client.audio.transcriptions.create(model="starter-speech", file=quiet).text.strip() == ""


def test_errors_have_openais_shape(client: OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        ask(client, "gpt-99", "hi")
    assert missing.value.code == "model_not_found"
    assert "starter-chat" in missing.value.message
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        ask(client, "starter-embed", "hi")
    broken = server.http.post("/v1/chat/completions", content=b"{nope", headers=AS_JSON)
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")
    huge = server.http.post("/v1/chat/completions", content=b" " * (4 * 2**20 + 1), headers=AS_JSON)
    assert huge.status_code == 413
    assert server.http.get("/nowhere").json()["error"]["code"] == "unknown_path"
    assert server.http.delete("/v1/chat/completions").status_code == 405


def test_a_disconnect_frees_the_engine(server: Server) -> None:
    body = {
        "model": "starter-chat", "messages": [{"role": "user", "content": "hi"}], "stream": True,
        "max_tokens": 450, "ignore_eos": True, "n": 128,
    }  # fmt: skip

    def cancelled() -> float:
        return server.metric("roundhouse_requests_total", model="starter-chat", outcome="cancelled")

    def sampled() -> float:
        return server.metric("roundhouse_tokens_total", model="starter-chat", kind="completion")

    before, tokens = cancelled(), sampled()
    with server.http.stream("POST", "/v1/chat/completions", json=body) as stream:
        next(stream.iter_lines())
    eventually(lambda: cancelled() > before)  # counted only when the work has left the engine
    assert server.metric("roundhouse_running_requests", model="starter-chat") == 0
    assert 0 < sampled() - tokens < 128 * 450  # what it had cost by then is counted, and it is not all of it


def test_adapters_by_http(server: Server, client: OpenAI) -> None:
    path = str((PACK / "adapters" / "rot13").resolve())
    body = {"name": "secret", "base": "starter-chat", "source": {"path": path}, "alias": "prod"}
    made = server.http.post("/v1/adapters", json=body)
    assert made.status_code == 201, made.text
    assert made.json()["digest"] == server.http.get("/v1/adapters/rot13").json()["digest"]
    assert ask(client, "secret@prod", "hello") == ask(client, "rot13", "hello")
    assert server.http.post("/v1/adapters", json=body).status_code == 200  # the same content: nothing new
    listed = {a["name"]: a for a in server.http.get("/v1/adapters").json()["data"]}
    assert listed["secret"]["aliases"] == {"prod": "v1"}
    assert listed["secret"]["tier"] == "device"
    assert server.http.delete("/v1/adapters/secret").status_code == 409
    assert server.http.delete("/v1/adapters/secret?force=true").status_code == 200
    with pytest.raises(openai.NotFoundError):
        ask(client, "secret", "hello")
    bad = server.http.post("/v1/adapters", json={**body, "source": {"path": str(STARTER)}})
    assert bad.status_code == 422
    assert bad.json()["error"]["faults"]


@pytest.mark.parametrize(("model", "niceness"), [("chat", 0), ("embed", 10), ("rerank", 10), ("speech", 10)])
def test_chat_goes_first_where_cpus_are_short(server: Server, model: str, niceness: int) -> None:
    assert server.http.post(f"/v1/models/starter-{model}/load", timeout=PATIENCE).status_code == 200
    own = os.getpriority(os.PRIO_PROCESS, server.process.pid)
    processes = [server.slot_pid(f"starter-{model}")]
    if model == "chat":
        processes.append(server.core_pid("starter-chat"))
    for pid in processes:
        threads = [thread.id for thread in psutil.Process(pid).threads()]
        first = min(os.getpriority(os.PRIO_PROCESS, thread) for thread in threads)  # of a chat model's some give way
        assert first == min(19, own + niceness)


def test_each_line_of_the_log_is_json(server: Server) -> None:
    """Those of engines and of their libraries in C++, too."""
    lines = server.log.read_text(errors="replace").splitlines()
    assert len(lines) > 20
    assert [line for line in lines if line and not line.startswith("{")] == []


def test_a_server_shows_its_health_models_memory_and_metrics(server: Server) -> None:
    assert server.http.get("/health/live").json() == {"status": "live"}
    listed = server.http.get("/v1/models").json()
    assert listed["object"] == "list"
    assert {"starter-chat", "starter-embed", "starter-rerank", "starter-speech"} <= {m["id"] for m in listed["data"]}
    status = server.http.get("/v1/status").json()
    assert status["device"]["budget_bytes"] > status["device"]["resident_bytes"] > 0
    document = server.http.get("/openapi.json").json()
    assert "/v1/audio/transcriptions" in document["paths"]
    assert server.http.get("/docs").status_code == 200
    assert "vllm:lora_requests_info" in server.http.get("/metrics").text
