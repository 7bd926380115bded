"""`batch list|show|watch|cancel|results` and `files`."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.commands.batches import waiting
from tests.unit.cli.batches.test_run import DONE, FAILED, batch, jsonl
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import Answer, FakeServer

FILE: dict[str, Any] = {
    "id": "file-1", "object": "file", "bytes": 2048, "created_at": 1, "filename": "in.jsonl", "purpose": "batch",
    "status": "error", "status_details": "Line 3: no.",
}  # fmt: skip


def test_list_prints_batches(server: FakeServer, run: Run) -> None:
    rows = [batch("in_progress", 2, 1), batch("completed", 5)]
    server.on("GET", "/v1/batches", Answer({"object": "list", "data": rows, "has_more": False}))
    table = run("batch", "list", "--limit", "7").stdout
    assert "2 of 5, 1 failed" in table
    assert server.received[-1].query == "limit=7"
    assert json.loads(run("batch", "list", "--json").stdout)["data"] == rows


def test_show_says_why_a_batch_waits_and_what_is_wrong(server: FakeServer, run: Run) -> None:
    fault = {"code": "url_mismatch", "line": 4, "message": "Another url.", "param": "url"}
    listed = batch("failed", errors={"object": "list", "data": [fault]}, roundhouse={"waits": "the budget is spent"})
    server.on("GET", "/v1/batches/batch_1", Answer(listed))
    text = run("batch", "show", "batch_1").stdout
    assert "line 4: url_mismatch: Another url." in text
    assert "the budget is spent" in text
    assert json.loads(run("batch", "show", "batch_1", "--json").stdout) == listed


def test_show_has_the_forecast(server: FakeServer, run: Run) -> None:
    now = int(time.time())
    forecast = {"early": now + 1810, "likely": now + 3610, "late": now + 7210, "made": now}
    more = {"roundhouse": {"forecast": forecast, "late": False}}
    server.on("GET", "/v1/batches/batch_1", Answer(batch("in_progress", 2, **more)))
    assert "60 min left (30 min to 2.0 h)" in run("batch", "show", "batch_1").stdout
    more["roundhouse"]["late"] = True
    server.on("GET", "/v1/batches/batch_1", Answer(batch("in_progress", 2, **more)))
    assert "2.0 h), after the end of its window" in run("batch", "show", "batch_1").stdout


def test_watch_prints_changes_until_the_end(server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_POLL", 0.0)
    states = [batch("in_progress", 2), batch("completed", 5)]
    server.on("GET", "/v1/batches/batch_1", lambda _: Answer(states.pop(0)))
    result = run("batch", "watch", "batch_1", "--json")
    assert json.loads(result.stdout)["status"] == "completed"


def test_cancel_is_one_call(server: FakeServer, run: Run) -> None:
    server.on("POST", "/v1/batches/batch_1/cancel", Answer(batch("cancelling", 2)))
    assert "cancelling" in run("batch", "cancel", "batch_1").stdout
    missing = run("batch", "cancel", "batch_2")
    assert missing.exit_code == 1


def test_results_are_written_to_a_file(server: FakeServer, run: Run, tmp_path: Path) -> None:
    server.on("GET", "/v1/batches/batch_1", Answer(batch("expired", 1, 4)))
    server.on("GET", "/v1/files/file-1-output/content", Answer(jsonl(DONE)))
    server.on("GET", "/v1/files/file-1-errors/content", Answer(jsonl(FAILED)))
    result = run("batch", "results", "batch_1", "-o", str(tmp_path / "out.jsonl"))
    assert (result.exit_code, (tmp_path / "out.jsonl").read_text()) == (1, jsonl(DONE))
    assert "is expired" in result.stderr


def test_results_on_standard_output_fail_as_those_in_a_file_do(server: FakeServer, run: Run, tmp_path: Path) -> None:
    server.on("GET", "/v1/batches/batch_1", Answer(batch("completed", 1, 4)))
    server.on("GET", "/v1/files/file-1-output/content", Answer(jsonl(DONE)))
    server.on("GET", "/v1/files/file-1-errors/content", Answer(jsonl(FAILED)))
    result = run("batch", "results", "batch_1")
    assert (result.exit_code, result.stdout) == (1, jsonl(DONE))
    assert "1 of 5 lines succeeded. To see why lines failed, add --errors FILE." in result.stderr
    errors = tmp_path / "errors.jsonl"
    result = run("batch", "results", "batch_1", "--errors", str(errors))
    assert (result.exit_code, result.stdout, errors.read_text()) == (1, jsonl(DONE), jsonl(FAILED))
    assert "model_not_found" in result.stderr
    result = run("batch", "results", "batch_1", "--json")
    assert (result.exit_code, json.loads(result.stdout)["id"]) == (1, "batch_1")


def test_results_of_a_failed_batch_leave_the_files_of_an_earlier_one(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    output, errors = tmp_path / "out.jsonl", tmp_path / "out.errors.jsonl"
    output.write_text("x\n")
    errors.write_text("y\n")
    server.on("GET", "/v1/batches/batch_1", Answer(batch("failed")))
    result = run("batch", "results", "batch_1", "-o", str(output))
    assert (result.exit_code, output.read_text(), errors.read_text()) == (1, "x\n", "y\n")


def test_results_of_a_running_batch_are_refused(server: FakeServer, run: Run) -> None:
    server.on("GET", "/v1/batches/batch_1", Answer(batch("in_progress", 2)))
    result = run("batch", "results", "batch_1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "batch watch batch_1" in result.stderr


def test_files_are_listed_fetched_and_removed(server: FakeServer, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("x\n")
    server.on("POST", "/v1/files", Answer(FILE))
    assert "Line 3: no." in run("files", "upload", str(path)).stdout
    assert b'filename="in.jsonl"' in server.received[-1].body
    assert run("files", "upload", str(tmp_path / "none")).exit_code == 1
    server.on("GET", "/v1/files", Answer({"object": "list", "data": [FILE], "has_more": False}))
    assert "2.0 KiB" in run("files", "list", "--purpose", "batch").stdout
    server.on("GET", "/v1/files/file-1", Answer(FILE))
    server.on("GET", "/v1/files/file-1/content", Answer("x\n"))
    assert run("files", "get", "file-1").stdout == "x\n"
    run("files", "get", "file-1", "-o", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_text() == "x\n"
    assert json.loads(run("files", "get", "file-1", "--json").stdout) == FILE
    server.on("DELETE", "/v1/files/file-1", Answer({"id": "file-1", "object": "file", "deleted": True}))
    assert run("files", "delete", "file-1").stdout == "file-1: deleted\n"
