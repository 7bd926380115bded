"""What a client sends stays out of the log and the metrics, also where it is wrong."""

import json
from typing import Any

import pytest

from tests.system.serving import PACK, Server

pytestmark = pytest.mark.real
SECRET = "Xyzzy77Plugh"
AS_JSON = {"Content-Type": "application/json"}
HEADERS = {"Authorization": f"Bearer sk-{SECRET}", "X-Api-Key": SECRET}
SAMPLE = PACK / "samples" / "kitchen-light.wav"
CHAT: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4}),
    ("/v1/chat/completions", {"messages": [{"role": SECRET, "content": SECRET}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET * 100}]}),
    ("/v1/chat/completions", {"messages": SECRET, SECRET: 1}),
    ("/v1/completions", {"prompt": SECRET, "max_tokens": 4, "stream": True}),
    ("/v1/responses", {"input": SECRET, "max_output_tokens": 4}),
    ("/v1/messages", {"messages": [{"role": "user", "content": SECRET}], "system": SECRET, "max_tokens": 4}),
    ("/tokenize", {"prompt": SECRET}),
    ("/v1/embeddings", {"input": [SECRET, ""]}),
]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"model": "embed", "input": SECRET, "user": SECRET}),
    ("/v1/embeddings", {"model": "embed", "input": f"{SECRET} " * 400}),
    ("/v1/rerank", {"model": "rerank", "query": SECRET, "documents": [SECRET, {"x": SECRET}]}),
    ("/rerank", {"query": SECRET, "texts": [SECRET]}),
]


def test_nothing_of_a_request_is_logged(server: Server) -> None:
    asked = [(path, {"model": "starter-chat", **body}) for path, body in CHAT] + OTHERS
    statuses = set()
    for path, body in asked:
        statuses.add(server.http.post(path, json=body, headers=HEADERS).status_code)
        cut = json.dumps(body)[:-1].encode()
        assert server.http.post(path, content=cut, headers=HEADERS | AS_JSON).status_code == 400
    assert statuses == {200, 400}
    form = {"model": "starter-speech", "prompt": SECRET, "hotwords": SECRET}
    for name, content, status in ((f"{SECRET}.wav", SAMPLE.read_bytes(), 200), (f"{SECRET}.mp3", SECRET.encode(), 400)):
        answer = server.http.post(
            "/v1/audio/transcriptions", data=form, files={"file": (name, content)}, headers=HEADERS
        )  # fmt: skip
        assert answer.status_code == status
    heard = SAMPLE.with_suffix(".txt").read_text().strip()
    log = server.log.read_text(errors="replace")
    assert log, "the server logs its loads"
    assert SECRET not in log
    assert heard not in log
    assert SECRET not in server.http.get("/metrics").text
    assert SECRET not in server.http.get("/v1/status").text
