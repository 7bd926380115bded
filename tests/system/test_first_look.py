"""What people see who try the server for the first time: pages, probes, paths of other servers, the log."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import cohere
import pytest

from tests.eventually import PATIENCE, eventually
from tests.system.serving import Server

pytestmark = pytest.mark.real
DOCUMENTS = ["A tuple cannot be changed.", "The open function returns a file object."]
REQUEST = {"model": "starter-rerank", "query": "how do I open a file", "documents": DOCUMENTS}
HELLO = {"model": "uppercase", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
FOREIGN_ADDRESS = re.compile(r"(?:src|href)=[\"']?(?:https?:)?//")


def test_a_browser_gets_pages_that_need_no_network(server: Server) -> None:
    home = server.http.get("/", headers={"Accept": "text/html"}, follow_redirects=True)
    assert str(home.url) == f"{server.url}/console/now"
    assert server.http.head("/").status_code == 200
    assert all(name in home.text for name in ("starter-chat", "starter-speech", "../docs"))
    docs = server.http.get("/docs")
    for page in (home, docs):
        assert not FOREIGN_ADDRESS.search(page.text)
    for name in re.findall(r"/docs/assets/[\w.-]+", docs.text):
        asset = server.http.get(name)
        assert (asset.status_code, len(asset.content) > 500) == (200, True), name
    assert len(server.http.get("/docs/assets/swagger-ui-bundle.js").content) > 10**6
    assert server.http.get("/docs/assets/../../pyproject.toml").status_code == 404


@pytest.mark.parametrize("path", ["/health", "/ping", "/health/live", "/health/ready"])
def test_probes_of_other_servers(server: Server, path: str) -> None:
    assert server.http.get(path).status_code == 200


def test_other_servers_habits(server: Server) -> None:
    assert server.http.post("/ping").status_code == 200
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", server.http.get("/version").json()["version"])
    assert server.http.get("/v1/models/").json() == server.http.get("/v1/models").json()
    options = server.http.options("/v1/chat/completions")
    assert (options.status_code, options.headers["allow"]) == (204, "OPTIONS, POST")
    assert server.http.options("/nothing").status_code == 404


def test_a_websocket_is_refused_clearly(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as raw:
        raw.sendall(
            b"GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        head = ""
        while "unknown_path" not in head and (part := raw.recv(65536)):
            head += part.decode()
    assert head.startswith("HTTP/1.1 404"), head
    assert "/v1/realtime" in head
    assert "unknown_path" in head


def lines(server: Server, id_: str) -> list[dict[str, Any]]:
    found = (json.loads(line) for line in server.log.read_text().splitlines() if f'"{id_}"' in line)
    return [line for line in found if line.get("request_id") == id_]


def test_each_request_is_one_line_of_the_log(server: Server) -> None:
    server.http.post("/v1/chat/completions", json=HELLO, headers={"X-Request-Id": "look-1"}).raise_for_status()
    server.http.post("/v1/embeddings", json={"model": "starter-embed"}, headers={"X-Request-Id": "look-2"})
    wrong = {"model": "uppercase", "max_tokens": 5, "messages": [{"role": "nobody", "content": 1}]}
    refused = server.http.post("/v1/messages", json=wrong, headers={"X-Request-Id": "look-3"})
    assert refused.status_code == 400
    empty = {"model": "uppercase", "max_tokens": 5, "messages": []}
    assert server.http.post("/v1/messages", json=empty).status_code == 400
    eventually(lambda: all(lines(server, f"look-{n}") for n in (1, 2, 3)), server.tail)
    [answered], [bad], [worse] = (lines(server, f"look-{n}") for n in (1, 2, 3))
    assert answered["level"] == bad["level"] == worse["level"] == "info"
    assert answered["model"] == "starter-chat"
    assert answered["adapter"].startswith("uppercase@sha256:")
    assert (answered["endpoint"], answered["status"], answered["end"]) == ("/v1/chat/completions", 200, "done")
    assert answered["completion_tokens"] == len("HELLO") + 1
    assert answered["prompt_tokens"] > len("hello")
    assert 0 <= answered["queue_seconds"] <= answered["first_seconds"] <= answered["seconds"]
    assert (bad["status"], bad["end"]) == (400, "refused")
    wrongs = ("preproc", "create_messages")
    logged = [line for line in server.log.read_text().splitlines() if '"level": "error"' in line]
    errors = [line for line in logged if any(word in line for word in wrongs)]
    assert errors == [], "what a client did wrong is no error of the server's"


def test_the_machine_itself_is_measured_too(server: Server) -> None:
    """Dashboards show these series beside vLLM's own."""
    used, total = (server.metric(f"roundhouse_device_memory_{name}_bytes", device="cpu") for name in ("used", "total"))
    assert 0 < used < total
    assert 0 <= server.metric("roundhouse_device_utilization_ratio", device="cpu") <= 1
    assert "roundhouse_device_utilization_ratio{" in server.http.get("/metrics").text


def test_a_wish_to_store_is_taken_with_a_warning(server: Server) -> None:
    for path, body in (
        ("/v1/chat/completions", HELLO),
        ("/v1/responses", {"model": "uppercase", "input": "hello", "temperature": 0}),
    ):
        answer = server.http.post(path, json={**body, "store": True})
        assert (answer.status_code, answer.headers["x-roundhouse-warning"]) == (200, "store: nothing is stored here")
        assert "HELLO" in answer.text


def test_an_unread_template_argument_is_reported(server: Server) -> None:
    """Such a misspelt name used to be ignored without a warning."""
    requested = {**HELLO, "chat_template_kwargs": {"enable_thinkin": False, "tools": None}}
    answer = server.http.post("/v1/chat/completions", json=requested)
    reported = "chat_template_kwargs: this model's chat template does not read enable_thinkin"
    assert (answer.status_code, answer.headers["x-roundhouse-warning"]) == (200, reported)


def test_coheres_client_ranks_documents(server: Server) -> None:
    found = cohere.ClientV2(api_key="none", base_url=server.url).rerank(**REQUEST)  # type: ignore[arg-type]
    assert [result.index for result in found.results] == [1, 0]


def roundhouse(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [str(Path(sys.executable).parent / "roundhouse"), *arguments]
    import os

    return subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, **environment})


def test_the_address_stands_before_the_command_or_behind_it(server: Server) -> None:
    for arguments in (
        ["--url", server.url, "models", "list", "--json"],
        ["models", "list", "--json", "--url", server.url],
        ["--url", "http://127.0.0.1:9", "models", "list", "--json", "--url", server.url],
    ):
        done = roundhouse(*arguments, ROUNDHOUSE_URL="http://127.0.0.1:9")
        assert done.returncode == 0, done.stderr
        assert any(model["id"] == "starter-chat" for model in json.loads(done.stdout)["data"])
    assert roundhouse("--url", "http://127.0.0.1:9", "status", ROUNDHOUSE_URL=server.url).returncode == 3


def test_an_invalid_adapter_is_explained(server: Server, tmp_path: Path) -> None:
    full, trained = tmp_path / "merged", tmp_path / "out"
    (trained / "checkpoint-8").mkdir(parents=True)
    (trained / "checkpoint-48").mkdir()
    full.mkdir()
    (full / "config.json").write_text("{}")
    (full / "model.safetensors").write_text("")
    for folder, words in ((full, "full model"), (trained, "checkpoint-48")):
        done = roundhouse("adapters", "add", "x", "--base", "starter-chat", str(folder), "--url", server.url)
        assert done.returncode == 1
        assert words in done.stderr
        assert done.stderr.count(words) == 1
        body = {"name": "x", "base": "starter-chat", "source": {"path": str(folder)}}
        answer = server.http.post("/v1/adapters", json=body)
        assert words in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(
    ("source", "words"),
    [(7, '{"path": "/a/folder"}'), ({}, '"hub"'), ({"path": "~/x"}, "whole path"), ({"path": "x"}, "absolute")],
)
def test_an_invalid_source_gets_advice(server: Server, source: Any, words: str) -> None:
    body = {"name": "x", "base": "starter-chat", "source": source}
    error = server.http.post("/v1/adapters", json=body).json()["error"]
    assert words in error["message"]
    assert error["param"].startswith("source")
    assert "PathSource" not in error["message"]
