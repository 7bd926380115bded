"""`batch run` checks the input, sends it once, goes on after an interruption, and reports failed lines."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.commands.batches import waiting
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import Answer, FakeServer, ReceivedRequest

URL = "/v1/chat/completions"
DONE = [{"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "body": {}}, "error": None}]
FAILED = [
    {"custom_id": "b", "response": {"status_code": 404, "body": {"error": {"code": "model_not_found"}}}, "error": None},
    {"custom_id": "c", "response": {"status_code": 404, "body": {"error": {"code": "model_not_found"}}}, "error": None},
    {"custom_id": "d", "response": None, "error": {"code": "batch_expired", "message": "x"}},
    {"custom_id": "e", "response": {"status_code": 400, "body": {"message": "x"}}, "error": None},
]


def batch(status: str, completed: int = 0, failed: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "id": "batch_1", "object": "batch", "endpoint": URL, "errors": None, "input_file_id": "file-1",
        "completion_window": "24h", "status": status, "output_file_id": "file-1-output" if completed else None,
        "error_file_id": "file-1-errors" if failed else None, "created_at": 1,
        "request_counts": {"total": 5, "completed": completed, "failed": failed},
        "roundhouse": {"priority": "normal"}, **more,
    }  # fmt: skip


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


class Batches:
    """A server with one batch, which returns these states one after the other."""

    def __init__(self, server: FakeServer, *states: dict[str, Any]) -> None:
        self.server, self.states = server, list(states)
        server.on("POST", "/v1/files", Answer({"id": "file-1", "status": "processed"}))
        server.on("POST", "/v1/batches", Answer(batch("validating")))
        server.on("GET", "/v1/batches/batch_1", self._next)
        server.on("GET", "/v1/files/file-1-output/content", Answer(jsonl(DONE)))
        server.on("GET", "/v1/files/file-1-errors/content", Answer(jsonl(FAILED)))

    def _next(self, _: ReceivedRequest) -> Answer:
        return Answer(self.states.pop(0) if len(self.states) > 1 else self.states[0])

    def sent(self, path: str) -> list[ReceivedRequest]:
        return [one for one in self.server.received if (one.method, one.path) == ("POST", path)]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LEAST_POLL", 0.0)
    monkeypatch.setattr(waiting, "MOST_POLL", 0.0)


@pytest.fixture
def input_(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    rows = [{"custom_id": name, "method": "POST", "url": URL, "body": {"model": "m"}} for name in "abcde"]
    path.write_text(jsonl(rows))
    return path


def test_one_answer_is_printed_in_the_singular(server: FakeServer, run: Run, input_: Path, tmp_path: Path) -> None:
    Batches(server, batch("completed", 1))
    output = tmp_path / "out.jsonl"
    result = run("batch", "run", str(input_), "-o", str(output))
    assert result.stdout == f"1 answer is in {output}\n", result.stderr


def test_all_answers_are_written_to_the_output(server: FakeServer, run: Run, input_: Path, tmp_path: Path) -> None:
    served = Batches(server, batch("validating"), batch("in_progress", 2), batch("completed", 5))
    output = tmp_path / "out.jsonl"
    result = run("batch", "run", str(input_), "-o", str(output), "--window", "2h")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"5 answers are in {output}\n"
    assert output.read_text() == jsonl(DONE)
    (sent,) = served.sent("/v1/batches")
    assert sent.json == {"input_file_id": "file-1", "endpoint": URL, "completion_window": "2h"}
    (upload,) = served.sent("/v1/files")
    assert input_.read_bytes() in upload.body
    assert upload.headers["Idempotency-Key"] == sent.headers["Idempotency-Key"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_json_prints_the_batch_alone(server: FakeServer, run: Run, input_: Path, tmp_path: Path) -> None:
    Batches(server, batch("completed", 5))
    result = run("batch", "run", str(input_), "-o", str(tmp_path / "out.jsonl"), "--json")
    assert json.loads(result.stdout) == batch("completed", 5)


def test_lines_that_failed_are_counted_by_code(server: FakeServer, run: Run, input_: Path, tmp_path: Path) -> None:
    Batches(server, batch("completed", 1, 4))
    result = run("batch", "run", str(input_), "-o", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 1
    rows = [line.split() for line in result.stderr.splitlines()]
    assert ["2", "model_not_found"] in rows
    assert ["1", "batch_expired"] in rows
    assert ["1", "400"] in rows
    assert (tmp_path / "out.errors.jsonl").read_text() == jsonl(FAILED)
    assert (tmp_path / "out.jsonl").read_text() == jsonl(DONE)


def test_a_batch_without_any_success_fails(server: FakeServer, run: Run, input_: Path, tmp_path: Path) -> None:
    Batches(server, batch("completed", 0, 4))
    result = run("batch", "run", str(input_), "-o", str(tmp_path / "out.jsonl"), "--errors", str(tmp_path / "bad"))
    assert result.exit_code == 1
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    assert (tmp_path / "bad").read_text() == jsonl(FAILED)


def test_a_file_with_faults_is_not_sent(server: FakeServer, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"custom_id": "a"}\n' * 30)
    result = run("batch", "run", str(path), "-o", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 1
    assert "line 1: missing_required_parameter" in result.stderr
    assert "and 20 more" in result.stderr
    assert server.received == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_over_the_usual_size_is_left_to_the_server(
    server: FakeServer, run: Run, input_: Path, tmp_path: Path
) -> None:
    """It may have a larger --max-json or --bounds-factor."""
    served = Batches(server, batch("completed", 5))
    large: list[Any] = ["a" * (4 << 20), [[]] * 70_000]
    rows = [{"custom_id": str(n), "method": "POST", "url": URL, "body": {"x": x}} for n, x in enumerate(large)]
    with input_.open("a") as file:
        file.write(jsonl(rows))
    result = run("batch", "run", str(input_), "-o", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 0, result.stderr
    (upload,) = served.sent("/v1/files")
    assert input_.read_bytes() in upload.body
    input_.write_text(jsonl(rows) + "{}\n")
    assert run("batch", "run", str(input_), "-o", str(tmp_path / "out.jsonl")).exit_code == 1


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff", b"[" * 3000, b"[1]\n"])
def test_files_that_are_no_input_are_refused(server: FakeServer, run: Run, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    assert run("batch", "run", str(path), "-o", str(tmp_path / "out.jsonl")).exit_code == 1
    assert run("batch", "run", str(tmp_path / "none"), "-o", str(tmp_path / "out.jsonl")).exit_code == 1
    assert server.received == []


def test_a_batch_that_the_server_fails_is_reported(server: FakeServer, run: Run, input_: Path, tmp_path: Path) -> None:
    fault = {"code": "too_many_tasks", "line": None, "message": "Too many.", "param": None}
    Batches(server, batch("failed", errors={"object": "list", "data": [fault]}))
    result = run("batch", "run", str(input_), "-o", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 1
    assert "too_many_tasks: Too many." in result.stderr
    assert not (tmp_path / "out.jsonl").exists()


def interrupt(_: float) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_leaves_it_running_and_a_second_run_goes_on(
    server: FakeServer, run: Run, input_: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Batches(server, batch("in_progress", 2))
    output = str(tmp_path / "out.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupt)
        result = run("batch", "run", str(input_), "-o", output)
    assert result.exit_code == 130
    assert "batch_1 continues" in result.stderr
    served.states[:] = [batch("completed", 5)]
    assert run("batch", "run", str(input_), "-o", output).exit_code == 0
    assert (len(served.sent("/v1/files")), len(served.sent("/v1/batches"))) == (1, 1)


def test_another_input_or_window_creates_another_batch(
    server: FakeServer, run: Run, input_: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Batches(server, batch("in_progress", 2))
    output = str(tmp_path / "out.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupt)
        run("batch", "run", str(input_), "-o", output)
        input_.write_text(input_.read_text().replace('"e"', '"f"'))
        run("batch", "run", str(input_), "-o", output)
        run("batch", "run", str(input_), "-o", output, "--window", "3h")
    keys = [one.headers["Idempotency-Key"] for one in served.sent("/v1/batches")]
    assert len(set(keys)) == 3


def test_a_creation_whose_answer_is_lost_is_repeated_with_its_key(
    server: FakeServer, run: Run, input_: Path, tmp_path: Path
) -> None:
    served = Batches(server, batch("completed", 5))
    server.on("POST", "/v1/batches", Answer({"error": {"message": "no"}}, 503))
    output = str(tmp_path / "out.jsonl")
    assert run("batch", "run", str(input_), "-o", output).exit_code == 4
    server.on("POST", "/v1/batches", Answer(batch("validating")))
    assert run("batch", "run", str(input_), "-o", output).exit_code == 0
    for path in ("/v1/files", "/v1/batches"):
        assert len({one.headers["Idempotency-Key"] for one in served.sent(path)}) == 1


def test_a_deleted_batch_is_created_again(
    server: FakeServer, run: Run, input_: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Batches(server, batch("in_progress", 2))
    output = str(tmp_path / "out.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupt)
        run("batch", "run", str(input_), "-o", output)
    states: list[Answer] = [Answer({"error": {"message": "no"}}, 404), Answer(batch("completed", 5))]
    answer: Callable[[ReceivedRequest], Answer] = lambda _: states.pop(0)  # noqa: E731
    server.on("GET", "/v1/batches/batch_1", answer)
    assert run("batch", "run", str(input_), "-o", output).exit_code == 0
    first, second = (one.headers["Idempotency-Key"] for one in served.sent("/v1/batches"))
    assert first != second


def test_the_key_of_a_batch_that_is_created_again_outlives_an_interruption(
    server: FakeServer, run: Run, input_: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Batches(server, batch("in_progress", 2))
    output = str(tmp_path / "out.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupt)
        run("batch", "run", str(input_), "-o", output)
    server.on("GET", "/v1/batches/batch_1", Answer({"error": {"message": "no"}}, 404))
    server.on("POST", "/v1/batches", Answer({"error": {"message": "no"}}, 503))
    assert run("batch", "run", str(input_), "-o", output).exit_code == 4
    server.on("POST", "/v1/batches", Answer(batch("validating")))
    server.on("GET", "/v1/batches/batch_1", Answer(batch("completed", 5)))
    assert run("batch", "run", str(input_), "-o", output).exit_code == 0
    _, second, third = (one.headers["Idempotency-Key"] for one in served.sent("/v1/files"))
    assert second == third


def test_the_command_waits_for_a_restarting_server(server: FakeServer, run: Run, input_: Path, tmp_path: Path) -> None:
    Batches(server)
    states: list[Answer] = [
        Answer(batch("in_progress", 2)), Answer({"error": {"message": "no"}}, 503), Answer(batch("completed", 5)),
    ]  # fmt: skip
    server.on("GET", "/v1/batches/batch_1", lambda _: states.pop(0))
    assert run("batch", "run", str(input_), "-o", str(tmp_path / "out.jsonl")).exit_code == 0
