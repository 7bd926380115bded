"""The exit codes documented in the help."""

import errno
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.cli import output
from runtime.cli.remote import resource
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import Answer, FakeServer


@pytest.mark.parametrize(("status", "code"), [(400, 1), (404, 1), (429, 1), (500, 4), (503, 4)])
def test_a_status_becomes_an_exit_code(server: FakeServer, run: Run, status: int, code: int) -> None:
    server.on("GET", "/v1/status", Answer({"error": {"message": "So it is.", "code": "x"}}, status))
    result = run("status")
    assert result.exit_code == code
    assert result.stderr == "error: So it is.\n"
    assert result.stdout == ""


def test_a_server_that_does_not_answer_has_its_exit_code(run: Run) -> None:
    with socket.socket() as unused:  # bound but not listening, so that no other program gets the port
        unused.bind(("127.0.0.1", 0))
        result = run("status", "--url", f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert result.exit_code == 3
    assert "roundhouse serve" in result.stderr


def test_a_server_without_tls_is_named(server: FakeServer, run: Run) -> None:
    result = run("status", "--url", server.url.replace("http:", "https:"))
    assert result.exit_code == 3
    assert "Write http:// in --url" in result.stderr
    assert "roundhouse serve" not in result.stderr


@pytest.mark.parametrize("command", [("keys", "revoke", "key_1"), ("backup", "folder"), ("usage", "prune")])
def test_a_local_command_refuses_a_servers_url(run: Run, command: tuple[str, ...]) -> None:
    """It would change this machine's data directory instead."""
    result = run("--url", "http://127.0.0.1:1", *command)
    assert result.exit_code == 2
    assert "does not talk to a server. Leave --url out" in " ".join(result.stderr.replace("│", " ").split())
    assert run("--url", "http://127.0.0.1:1", *command, "--help").exit_code == 0


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://127.0.0.1:abc", "http://[::1"])
def test_an_invalid_address_is_wrong_usage(run: Run, url: str) -> None:
    result = run("status", "--url", url)
    assert result.exit_code == 2
    assert "is not an address" in result.stderr


@pytest.mark.parametrize("key", ["rh-\u00fcber", "rh-a\nb", "rh-a "])
def test_a_key_that_cannot_be_in_a_header_is_wrong_usage(run: Run, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_API_KEY", key)
    result = run("status", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "ROUNDHOUSE_API_KEY" in result.stderr
    assert key not in result.stderr


@pytest.mark.parametrize(
    ("variable", "value"), [("ALL_PROXY", "carrier-pigeon://127.0.0.1:1"), ("SSL_CERT_FILE", "/nowhere")]
)
def test_a_variable_that_breaks_connections_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    for name in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv(variable, value)
    result = run("status", "--url", "https://models.example")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {variable} has a value that cannot be used: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["models", "show"],
        ["models", "show", ""],
        ["adapters", "remove", ".."],
        ["nothing"],
        ["serve", "--port", "99"],
        ["status", "--x"],
        ["chat", "hi", "-m", "m", "--temperature", "nan", "--json"],
        ["adapters", "combine", "a", "b", "--weights", "nan", "1", "--name", "c"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_wrong_usage(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_a_server_that_is_not_ours_is_named(server: FakeServer, run: Run) -> None:
    server.on("GET", "/v1/status", Answer("<html>hello</html>"))
    result = run("status")
    assert result.exit_code == 4
    assert "not Roundhouse" in result.stderr


@pytest.mark.parametrize(
    ("command", "path", "answer"),
    [
        (["models", "list"], "/v1/models", {"data": [{"id": "gpt", "object": "model"}]}),
        (["status"], "/v1/status", {}),
        (["status", "--json"], "/v1/status", []),
    ],
    ids=str,
)  # fmt: skip
def test_another_servers_json_is_not_taken_for_ours(
    server: FakeServer, run: Run, command: list[str], path: str, answer: object
) -> None:
    server.on("GET", path, Answer(json.dumps(answer)))
    result = run(*command)
    assert result.exit_code == 4
    assert "not Roundhouse" in result.stderr


def test_a_page_or_a_redirect_is_no_recipe(server: FakeServer, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    path = "/v1/models/x/recipe"
    for answer in (
        Answer("<html>hello</html>", headers={"Content-Type": "text/html"}),
        Answer("<html>moved</html>", 301, {"Location": "https://models.example"}),
    ):
        server.on("GET", path, answer)
        result = run("models", "export", "x", "-o", str(file))
        assert result.exit_code == 4, result.stdout
        assert not file.exists()
    assert "https://models.example" in result.stderr


def test_the_status_of_a_foreign_error_is_printed(server: FakeServer, run: Run) -> None:
    server.on("GET", "/v1/status", Answer("<html>bad gateway</html>", 502))
    result = run("status")
    assert result.exit_code == 4
    assert "502" in result.stderr


def test_json_on_a_full_disk_is_an_error_on_standard_error(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error cannot be written to standard output either."""

    def full(_data: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    server.on("GET", "/v1/status", Answer({"error": {"message": "So it is.", "code": "x"}}, 404))
    monkeypatch.setattr(output, "emit", full)
    result = run("status", "--json")
    assert (result.exit_code, result.stderr) == (1, "error: So it is.\n")


def test_ctrl_c_has_its_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_url: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(resource, "Client", interrupted)
    assert run("status").exit_code == 130


def test_a_client_command_imports_nothing_heavy() -> None:
    code = (
        "import sys, runtime.cli.main, runtime.cli.remote.client, httpx\n"
        "heavy = {'torch', 'vllm', 'transformers', 'litserve', 'fastapi', 'numpy', 'sentence_transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"
