"""Two gateways on one PostgreSQL answer each line once, even if one is stopped in the middle of a line and continued.

The other gateway takes over its lines after 30 s of silence, and later answers of the stopped one are not written. Both
deliver callbacks: each event arrives once, or again with the same id. BATCHES_STOPPED_SECONDS=45 stops it for that
long.
"""

import json
import os
import shutil
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.eventually import PATIENCE, eventually
from tests.postgres import postgres, programs
from tests.system.batches.receiver import receive
from tests.system.serving import STARTER, Server

pytestmark = [pytest.mark.real, pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed")]
LINES, SMALL = 160, 5
STOPPED_SECONDS = float(os.environ.get("BATCHES_STOPPED_SECONDS", "0"))
"""Minimum time for which a gateway is stopped."""
URL = "/v1/chat/completions"


def _body(number: int) -> dict[str, Any]:
    message = {"role": "user", "content": f"seven boats {number}"}
    return {"model": "starter-chat", "messages": [message], "max_tokens": 200, "ignore_eos": True}


def _serve(folder: Path, name: str, url: str) -> Server:
    options = ("--slots", "1", "--database", url, "--hung-after", "300", "--callback-networks", "127.0.0.0/8")
    return Server(folder / name / "data", [STARTER / "starter-chat.yaml"], *options)


def _create(server: Server, callback: str, lines: int = LINES) -> str:
    rows = [
        {"custom_id": f"line-{number}", "method": "POST", "url": URL, "body": _body(number)} for number in range(lines)
    ]
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    file = server.http.post("/v1/files", files={"file": ("a.jsonl", data)}, data={"purpose": "batch"})
    assert file.status_code == 200, f"{file.text}\n{server.tail()}"
    body = {"input_file_id": file.json()["id"], "endpoint": URL, "completion_window": "24h", "callback_url": callback}
    return str(server.http.post("/v1/batches", json=body).json()["id"])


def test_a_gateway_that_was_stopped_for_long_writes_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url, receiver = stack.enter_context(postgres()), stack.enter_context(receive(200))
        stopped = stack.enter_context(_serve(tmp_path, "a", url)).wait_ready()
        (tmp_path / "b" / "data").mkdir(parents=True)
        shutil.copy(stopped.data / "pepper", tmp_path / "b" / "data")  # gateways on one database share the pepper
        other = stack.enter_context(_serve(tmp_path, "b", url)).wait_ready()
        database = sa.create_engine(url)
        stack.callback(database.dispose)

        def rows(query: str) -> list[Any]:
            with database.connect() as connection:
                return list(connection.execute(sa.text(query)))

        def batch() -> dict[str, Any]:
            found: dict[str, Any] = other.http.get(f"/v1/batches/{id_}").json()
            return found

        ids = [_create(server, receiver.url, 1) for server in (stopped, other) for _ in range(SMALL)]
        id_ = _create(stopped, receiver.url)
        eventually(lambda: batch()["request_counts"]["completed"] > 10, other.tail)
        gateway = stopped.gateway()
        owner = "SELECT l.number FROM lines l JOIN runners r ON r.epoch = l.epoch WHERE r.server = '{}'"
        server_id = (stopped.data / "server-id").read_text().strip()
        eventually(lambda: rows(owner.format(server_id)), stopped.tail)
        gateway.send_signal(signal.SIGSTOP)
        until = time.monotonic() + STOPPED_SECONDS
        try:
            orphans = {row.number for row in rows(owner.format(server_id))}
            assert orphans
            eventually(lambda: batch()["status"] == "completed", other.tail, 10 * PATIENCE)
            time.sleep(max(0.0, until - time.monotonic()))
        finally:
            gateway.send_signal(signal.SIGCONT)
        eventually(lambda: "another server took over" in stopped.log.read_text(errors="replace"), stopped.tail)
        running = "roundhouse_running_requests"
        eventually(lambda: stopped.metric(running, model="starter-chat") == 0, stopped.tail)  # its calls are cancelled
        assert batch()["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        content = stopped.http.get(f"/v1/files/{batch()['output_file_id']}/content").text
        answers = [json.loads(line) for line in content.splitlines()]
        assert Counter(line["custom_id"] for line in answers) == Counter(f"line-{n}" for n in range(LINES))
        eventually(lambda: not rows("SELECT 1 FROM ledger WHERE state = 'open'"), stopped.tail)
        done = rows(
            "SELECT l.request, prompt_tokens + completion_tokens AS tokens FROM ledger l JOIN lines USING (uid) "
            f"WHERE \"end\" = 'done' AND batch = '{id_}'"
        )
        used = {line["response"]["request_id"]: line["response"]["body"]["usage"]["total_tokens"] for line in answers}
        assert {row.request: row.tokens for row in done} == used
        assert len(done) == LINES
        others = "SELECT COALESCE(SUM(cost_micro + prompt_tokens), 0) FROM ledger WHERE \"end\" <> 'done'"
        assert rows(others)[0][0] == 0
        checked = other.command("usage", "reconcile", "--database", url)
        assert (checked["differences"], checked["open"]) == ([], 0)
        eventually(lambda: not rows("SELECT 1 FROM outbox WHERE state <> 'delivered'"), other.tail)
        events = {(json.loads(data)["data"]["id"], headers["webhook-id"]) for data, headers in receiver.calls}
        assert sorted(batch for batch, _ in events) == sorted([*ids, id_]), "each with one id, however often it came"
