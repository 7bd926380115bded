"""Batches through OpenAI's SDK and the command line, on the real server and engines."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.eventually import eventually
from tests.system.serving import PACK, ROOT, Server

pytestmark = pytest.mark.real
FINAL = ("completed", "failed", "expired", "cancelled")
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"


def request(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def chat(custom_id: str, model: str, text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return request(custom_id, CHAT, model=model, messages=messages, temperature=0, **more)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(client: OpenAI, path: Path, endpoint: Any) -> Any:
    """Run a batch from the upload to its end, as in OpenAI's guide."""
    with path.open("rb") as content:
        file = client.files.create(file=content, purpose="batch")
    assert client.files.wait_for_processing(file.id).status == "processed"
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    eventually(lambda: client.batches.retrieve(batch.id).status in FINAL, lambda: client.batches.retrieve(batch.id))
    return client.batches.retrieve(batch.id)


def read(client: OpenAI, id_: str | None) -> list[Any]:
    assert id_ is not None
    return [json.loads(line) for line in client.files.content(id_).text.splitlines()]


def test_many_models_and_adapters_in_one_file(client: OpenAI, tmp_path: Path) -> None:
    rows = [
        chat("c", "uppercase", "good green house"),
        chat("a", "starter-chat:last-word", "good green house"),
        chat("b", "acronym@v1", "good green house"),
        chat("apart", "starter-chat", "good green house", adapter_id="reverse-words"),
        chat("unknown", "nobody", "good green house"),
        chat("stream", "starter-chat", "hello", stream=True),
        chat("long", "starter-chat", "hello " * 3000),
        chat("wrong", "starter-embed", "hello"),
    ]
    batch = run(client, write(tmp_path / "in.jsonl", rows), CHAT)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (8, 4, 4)
    output = read(client, batch.output_file_id)
    assert [line["custom_id"] for line in output] == ["c", "a", "b", "apart"]
    bodies = [line["response"]["body"] for line in output]
    texts = [body["choices"][0]["message"]["content"] for body in bodies]
    assert texts == ["GOOD GREEN HOUSE", "house", "GGH", "house green good"]
    models = ["uppercase", "starter-chat:last-word", "acronym@v1", "starter-chat"]
    assert [body["model"] for body in bodies] == models, "as requested"
    pinned = client.batches.retrieve(batch.id).model_extra["roundhouse"]["models"]
    assert pinned["starter-chat adapter_id=reverse-words"] == "starter-chat:reverse-words@v1"
    assert all(line["error"] is None and line["response"]["request_id"] for line in output)
    assert output[0]["roundhouse"]["model"].startswith("starter-chat@")
    assert output[0]["roundhouse"]["adapter"].startswith("uppercase@sha256:")
    assert batch.usage.total_tokens == sum(body["usage"]["total_tokens"] for body in bodies)
    errors = {line["custom_id"]: line for line in read(client, batch.error_file_id)}
    assert list(errors) == ["unknown", "stream", "long", "wrong"]
    statuses = {name: line["response"]["status_code"] for name, line in errors.items()}
    assert statuses == {"unknown": 404, "stream": 400, "long": 400, "wrong": 400}
    assert all(line["error"] is None and line["response"]["body"]["error"]["message"] for line in errors.values())
    assert errors["unknown"]["response"]["body"]["error"]["code"] == "model_not_found"


def test_embeddings_in_a_batch_equal_those_of_a_request(client: OpenAI, tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(20)]
    rows = [request(text, EMBEDDINGS, model="starter-embed", input=text) for text in texts]
    batch = run(client, write(tmp_path / "in.jsonl", rows), EMBEDDINGS)
    assert (batch.status, batch.error_file_id) == ("completed", None)
    output = read(client, batch.output_file_id)
    assert [line["custom_id"] for line in output] == texts
    alone = client.embeddings.create(model="starter-embed", input=texts[3], encoding_format="float").data[0].embedding
    assert output[3]["response"]["body"]["data"][0]["embedding"] == pytest.approx(alone, abs=1e-3)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/completions", {"model": "starter-chat", "prompt": "hello", "max_tokens": 4}),
        ("/v1/responses", {"model": "starter-chat", "input": "hello", "max_output_tokens": 16}),
        (
            "/v1/messages",
            {"model": "starter-chat", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]},
        ),
        ("/v1/rerank", {"model": "starter-rerank", "query": "q", "documents": ["a", "b"]}),
        ("/v2/rerank", {"model": "starter-rerank", "query": "q", "documents": ["a", "b"]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_endpoint_answers_with_the_fields_of_a_single_request(
    server: Server, client: OpenAI, tmp_path: Path, url: str, body: dict[str, Any]
) -> None:
    batch = run(client, write(tmp_path / "in.jsonl", [request("a", url, **body)]), url)
    assert (batch.status, batch.request_counts.completed) == ("completed", 1), read(client, batch.error_file_id)
    (line,) = read(client, batch.output_file_id)
    alone = server.http.post(url, json=body).json()
    assert line["response"]["body"].keys() == alone.keys()


def test_no_text_of_a_batch_is_logged(server: Server, client: OpenAI, tmp_path: Path) -> None:
    secret = "nightjar"
    batch = run(client, write(tmp_path / "in.jsonl", [chat("a", "uppercase", f"the {secret} sings")]), CHAT)
    assert secret.upper() in json.dumps(read(client, batch.output_file_id))
    log = server.log.read_text(errors="replace")
    assert secret not in log
    assert secret.upper() not in log


def roundhouse(server: Server, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "runtime.cli.main", *arguments],
        cwd=ROOT,
        env={**os.environ, "ROUNDHOUSE_URL": server.url},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_line_runs_a_batch_and_lists_it(server: Server, tmp_path: Path) -> None:
    rows = [chat(f"id-{number}", "uppercase", f"word {number}") for number in range(40)]
    path, output = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    done = roundhouse(server, "batch", "run", str(path), "-o", str(output))
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    contents = [one["response"]["body"]["choices"][0]["message"]["content"] for one in answers]
    assert contents == [f"WORD {number}" for number in range(40)]
    write(path, [*rows, chat("bad", "nobody", "x")])
    failed = roundhouse(server, "batch", "run", str(path), "-o", str(output))
    assert failed.returncode == 1
    assert "model_not_found" in failed.stderr
    assert len((tmp_path / "out.errors.jsonl").read_text().splitlines()) == 1
    assert "completed" in roundhouse(server, "batch", "list").stdout


def test_recordings_are_named_by_the_ids_of_their_files(server: Server, client: OpenAI, tmp_path: Path) -> None:
    sample = PACK / "samples" / "kitchen-light.wav"
    with sample.open("rb") as content:
        sound = client.files.create(file=content, purpose="user_data")
    url = "/v1/audio/transcriptions"
    rows = [
        request("json", url, model="starter-speech", file_id=sound.id),
        request("text", url, model="starter-speech", file_id=sound.id, response_format="text"),
        request("unknown", url, model="starter-speech", file_id="file-none"),
        request("missing", url, model="starter-speech"),
        request("stream", url, model="starter-speech", file_id=sound.id, stream=True),
    ]
    batch = run(client, write(tmp_path / "in.jsonl", rows), url)
    assert batch.status == "completed"
    output = {line["custom_id"]: line["response"]["body"] for line in read(client, batch.output_file_id)}
    assert output["json"]["text"] == sample.with_suffix(".txt").read_text().strip()
    assert output["text"].strip() == sample.with_suffix(".txt").read_text().strip()
    statuses = {line["custom_id"]: line["response"]["status_code"] for line in read(client, batch.error_file_id)}
    assert statuses == {"unknown": 404, "missing": 400, "stream": 400}
