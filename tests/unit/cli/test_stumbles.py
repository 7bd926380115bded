"""Mistakes of the first hour get one message each, with what to write instead."""

import io
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text

from runtime.cli import output
from runtime.cli.commands.models import edits
from tests.unit.cli.conftest import Run, model
from tests.unit.cli.fake_server import Answer, FakeServer
from tests.unit.cli.test_help import ALL, parameters
from tests.unit.cli.test_model_edits import proposal


def flat(text: str) -> str:
    """Return the text without a box and its line breaks."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("path", [path for path in ALL if any(p.required for p in parameters(ALL[path]))], ids=" ".join)
def test_a_missing_argument_is_named_with_an_example(path: tuple[str, ...], run: Run) -> None:
    result = run(*path)
    assert result.exit_code == 2
    missing = next(parameter for parameter in parameters(ALL[path]) if parameter.required)
    reported = flat(result.stderr)
    assert flat(missing.help) in reported
    assert f"Such as: roundhouse {' '.join(path)} " in reported


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("run llama", "chat"),
        ("pull llama", "models add"),
        ("ps", "status"),
        ("terminate --model-uid x", "models unload"),
        ("models ls", "list"),
        ("adapters delete x", "remove"),
        ("models lst", "list"),
    ],
)
def test_another_tools_command_is_answered_with_ours(words: str, ours: str, run: Run) -> None:
    result = run(*words.split())
    assert result.exit_code == 2
    assert f"Did you mean '{ours}'?" in flat(result.stderr)
    assert any(" ".join(path).endswith(ours) for path in ALL)


def test_a_command_that_a_group_lacks_suggests_nothing_unrelated(run: Run) -> None:
    assert "Did you mean" not in run("usage", "rm").stderr


def test_the_version_is_an_option_too(run: Run) -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "roundhouse")


def test_a_server_that_does_not_answer_is_explained(run: Run) -> None:
    result = run("status", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 3
    assert "(Connection refused)" in result.stderr


def test_a_missing_key_is_explained_with_its_variable(server: FakeServer, run: Run) -> None:
    server.on("GET", "/v1/status", Answer({"error": {"message": "This server needs a key."}}, 401))
    assert "ROUNDHOUSE_API_KEY" in run("status").stderr


def test_retry_after_is_printed_once(server: FakeServer, run: Run) -> None:
    for message in ("The hub is away. Try again later.", "The queue is full."):
        server.on("GET", "/v1/status", Answer({"error": {"message": message}}, 503, {"Retry-After": "30"}))
        assert run("status").stderr.count("again") == 1


def test_a_server_without_a_model_says_how_to_add_one(server: FakeServer, run: Run) -> None:
    server.on("GET", "/v1/models", {"data": []})
    for command in (("chat", "hello"), ("embed", "x"), ("rerank", "q", "d")):
        result = run(*command)
        assert result.exit_code == 1
        assert "roundhouse models add" in result.stderr


def test_an_empty_list_says_so_but_stays_empty_in_a_pipe(server: FakeServer, run: Run) -> None:
    server.on("GET", "/v1/models", {"data": []})
    result = run("models", "list")
    assert (result.stdout.strip(), result.stderr) == ("MODEL  ALIASES  TASK  STATE  MEMORY  ADAPTERS", "(none)\n")


def test_an_empty_input_to_embed_is_refused(run: Run) -> None:
    result = run("embed", stdin="")
    assert result.exit_code == 2
    assert "Standard input was empty" in result.stderr


def test_a_file_that_cannot_be_read_or_written_is_one_line(server: FakeServer, run: Run, tmp_path: Path) -> None:
    server.on("GET", "/v1/models/m/recipe", Answer("id: m\n"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for command in (
        ("rerank", "q", "--file", str(tmp_path / "nowhere")),
        ("rerank", "q", "--file", str(tmp_path / "binary")),
        ("models", "export", "m", "-o", str(tmp_path / "no" / "m.yaml")),
    ):
        result = run(*command)
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: {tmp_path}")
        assert result.stderr.count(str(tmp_path)) == 1
        assert len(result.stderr.splitlines()) == 1


def test_a_narrow_terminal_cuts_no_reason_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    why = "a CPU computes in 32 bits, and products in 16-bit integers if it can do that"
    found = proposal(choices=[{"key": "batching.max_requests", "value": "x" * 70, "why": why}])
    edits._propose(found)
    displayed = terminal.getvalue()
    assert "batching.max_requests" in displayed
    assert displayed.count("x") >= 70
    assert "…" not in displayed
    assert all(word in displayed for word in why.split())


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_in_a_download_says_that_the_server_goes_on(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on("POST", "/v1/models", lambda received: Answer(
        proposal() if received.json.get("dry_run") else {"id": "mine", "new": True, "model": model("mine")}
    ))  # fmt: skip
    progress = {"phase": "fetching", "percent": 10.0, "detail": "1 MiB"}
    server.on("GET", "/v1/models/mine", model("mine", state="loading", progress=progress))
    monkeypatch.setattr("time.sleep", interrupted)
    result = run("models", "add", "org/name", "--yes")
    assert result.exit_code == 130
    assert "roundhouse models cancel mine" in result.stderr


def test_ctrl_c_at_a_question_changes_nothing(server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(*_: Any, **__: Any) -> None:
        raise typer.Abort

    server.on("POST", "/v1/models", proposal())
    monkeypatch.setattr(edits, "_ask", left)
    assert run("models", "add", "org/name").exit_code == 130
    assert [received.json["dry_run"] for received in server.received] == [True]


def test_json_does_not_mean_yes(server: FakeServer, run: Run) -> None:
    server.on("POST", "/v1/models", proposal())
    result = run("models", "add", "org/name", "--json")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert [received.json["dry_run"] for received in server.received] == [True]


def test_a_table_in_a_pipe_is_as_wide_as_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["A", "B", "COUNT"], [["x", "y" * 3000, "5"], ["東京", "one\nline", "10"]], right=["COUNT"])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head == f"A     {'B':<3000}  COUNT"
    assert first == f"x     {'y' * 3000}      5"
    assert second == f"東京  {'one line':<3000}     10"


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_narrow_terminal_cuts_no_cell_of_a_table(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    patterns = ", ".join(f"starter-{number}" for number in range(12))
    output.table(["KEY", "TEAM", "MODELS", "USED"], [["AZhsQk8d2mPr", "search", patterns, "1234.5"]], right=["USED"])
    displayed = terminal.getvalue()
    assert "AZhsQk8d2mPr" in displayed
    assert "1234.5" in displayed
    assert "…" not in displayed
    assert all(f"-{number}" in displayed for number in range(12))
    assert max(len(Text.from_ansi(line)) for line in displayed.splitlines()) <= columns


@pytest.mark.parametrize("command", [["embed", "-"], ["rerank", "q", "-f", "-"], ["chat", "-"]], ids=" ".join)
def test_input_that_is_no_utf_8_is_refused(server: FakeServer, command: list[str]) -> None:
    environment = {**os.environ, "ROUNDHOUSE_URL": server.url, "PYTHONUTF8": "0", "LC_ALL": "C.UTF-8"}
    reported = subprocess.run(
        [sys.executable, "-m", "runtime.cli.main", *command, "--model", "m"],
        input=b"caf\xe9\n", capture_output=True, env=environment, check=False,
    )  # fmt: skip
    assert reported.returncode == 2, reported.stderr
    assert reported.stderr.decode() == "error: An argument or the input is not valid UTF-8.\n"


def test_texts_are_lines_without_their_ends(server: FakeServer, run: Run) -> None:
    rows = [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0]}]
    server.on("POST", "/v1/embeddings", {"data": rows})
    assert run("embed", "-m", "m", stdin="one\u2028still one\x85\r\ntwo\n\n").exit_code == 0
    assert server.received[-1].json["input"] == ["one\u2028still one\x85", "two"]


def test_a_date_in_yaml_stays_a_text(server: FakeServer, run: Run, tmp_path: Path) -> None:
    server.on("PATCH", "/v1/models/m", {"id": "m", "changed": [], "version": 1, "before": 1, "waits": False})
    assert run("models", "edit", "m", "--set", "description=2024-01-01").exit_code == 0
    assert server.received[-1].json == {"changes": {"description": "2024-01-01"}}
    file = tmp_path / "r.yaml"
    file.write_text("id: r\ndescription: 2024-01-01\n")
    server.on("POST", "/v1/routers", {"name": "r", "new": True, "version": "v1", "digest": ""})
    assert run("routers", "add", str(file)).exit_code == 0
    assert server.received[-1].json == {"id": "r", "description": "2024-01-01"}
    for odd in (".inf", "!!bool foo", "!!int ''", "[" * 3000):
        assert run("models", "edit", "m", "--set", f"description={odd}").exit_code == 0
        assert server.received[-1].json == {"changes": {"description": odd}}
    file.write_bytes(b"id: caf\xe9\n")
    assert run("routers", "add", str(file)).exit_code == 1


def test_a_reader_that_closes_the_pipe_is_no_error(server: FakeServer) -> None:
    rows = [model(f"m-{number}") for number in range(2000)]
    server.on("GET", "/v1/models", {"data": rows})
    command = [sys.executable, "-m", "runtime.cli.main", "models", "list", "--url", server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait() == 0


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("--help > /dev/full", "No space left on device."),
        ("--install-completion bash", "/dev/null/home: Not a directory."),
        ("version >&-", "Standard output is closed."),
        ("chat <&-", "Standard input was empty. Give the text, or pipe it in."),
    ],
)
def test_streams_and_folders_that_cannot_be_used_are_one_line(line: str, cause: str) -> None:
    # Bash would let a single command replace it, and completion is installed for the shell that started the command.
    command = ["bash", "-c", f"{sys.executable} -m runtime.cli.main {line}; exit $?"]
    environment = {**os.environ, "HOME": "/dev/null/home"}
    environment.pop("PYTHONUNBUFFERED", None)  # so that what cannot be written is still there when Python ends
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stderr == f"error: {cause}\n"
    assert done.returncode in (1, 2)


@pytest.mark.parametrize("command", [("serve",), ("keys", "list"), ("backup", "copy")])
def test_a_user_without_a_home_names_the_data_directory(
    run: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # not a checkout, which has a data directory of its own
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    for name in ("XDG_DATA_HOME", "ROUNDHOUSE_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    result = run(*command)
    assert (result.exit_code, result.stderr) == (
        1,
        "error: This user has no home folder. Name the data directory with --data-dir, or set HOME.\n",
    )


def test_a_log_on_a_full_disk_does_not_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose log is there has to start in spite of it."""
    full = io.StringIO()
    monkeypatch.setattr(full, "write", lambda _: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
    monkeypatch.setattr(sys, "stderr", full)
    output.note("starting")
