"""A server stops and starts again during a batch. tests/system/batches/test_teams.py tests revoked keys."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import PATIENCE, eventually
from tests.system.serving import STARTER, Server

pytestmark = pytest.mark.real
URL = "/v1/chat/completions"


def _create(server: Server, lines: int, tokens: int) -> str:
    message = {"role": "user", "content": "seven boats"}
    body = {"model": "chat", "messages": [message], "max_tokens": tokens, "ignore_eos": True}
    rows = [{"custom_id": f"line-{n}", "method": "POST", "url": URL, "body": body} for n in range(lines)]
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    file = server.http.post("/v1/files", files={"file": ("a.jsonl", data)}, data={"purpose": "batch"}).json()["id"]
    new = {"input_file_id": file, "endpoint": URL, "completion_window": "24h"}
    return str(server.http.post("/v1/batches", json=new).json()["id"])


def _batch(server: Server, id_: str) -> dict[str, Any]:
    found: dict[str, Any] = server.http.get(f"/v1/batches/{id_}").json()
    return found


def test_a_batch_goes_on_after_a_restart(tmp_path: Path) -> None:
    server = Server(tmp_path / "a" / "data", [STARTER / "starter-chat.yaml"], "--slots", "1", "--drain-seconds", "1")
    with server:
        server.wait_ready()
        server.command("teams", "create", "counted")
        key = server.command("keys", "create", "--team", "counted", "--scopes", "infer,models")
        server.http.headers["x-api-key"] = key["value"]
        server.wait_closed()
        eventually(lambda: server.http.get("/v1/status").status_code == 200)
        id_ = _create(server, 200, 120)
        eventually(lambda: _batch(server, id_)["request_counts"]["completed"] > 20, server.tail)
        assert server.stop() == 0
        server.start()
        server.wait_ready()
        eventually(lambda: _batch(server, id_)["status"] == "completed", server.tail, 4 * PATIENCE)
        view = _batch(server, id_)
        assert view["request_counts"] == {"total": 200, "completed": 200, "failed": 0}
        content = server.http.get(f"/v1/files/{view['output_file_id']}/content").text
        lines = [json.loads(line) for line in content.splitlines()]
        assert [line["custom_id"] for line in lines] == [f"line-{n}" for n in range(200)]
        assert {line["roundhouse"]["attempts"] for line in lines} == {1}
        assert {line["roundhouse"]["model"].partition("@")[0] for line in lines} == {"starter-chat"}
        assert "seven boats" not in server.log.read_text(errors="replace")
