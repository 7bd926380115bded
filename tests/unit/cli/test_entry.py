"""The installed command: `serve` replaces its process before other imports; others find their server."""

import os
import subprocess
import sys

import pytest
import typer.main

from docs.tables.cli import parameters, walk
from runtime.cli import entry
from runtime.cli.main import app
from runtime.cli.options import DEFAULT_URL, URL
from tests.system.serving import ROOT

CODE = """
import os, sys
print(sum(name.startswith("typer") for name in sys.modules), os.environ.get("ROUNDHOUSE_SERVER_ID"), flush=True)
from runtime.cli.entry import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "starts", "code"),
    [(("serve", "--port", "1"), 2, 2), (("serve", "--help"), 1, 0), (("version",), 1, 0), (("status", "-x"), 1, 2)],
)
def test_serve_replaces_its_process_once(arguments: tuple[str, ...], starts: int, code: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ROUNDHOUSE_SERVER_ID"}
    command = [sys.executable, "-c", CODE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == code, done.stderr
    stated = [line.split() for line in done.stdout.splitlines() if line.startswith("0 ")]
    assert [ident == "None" for _, ident in stated] == [True, False][:starts]


def test_each_command_has_the_same_server_by_default() -> None:
    commands = walk(typer.main.get_command(app), "roundhouse")
    found = {name: one for name, command in commands for one in parameters(command) if "--url" in one.opts}
    assert len(found) > 50
    assert {name for name, option in found.items() if (option.default, option.envvar) != (DEFAULT_URL, URL)} == set()


@pytest.mark.parametrize(
    ("port", "address"),
    [("9123", "http://127.0.0.1:9123"), ("", "http://127.0.0.1:8000"), (None, "http://127.0.0.1:8000")],
)
def test_the_port_of_serve_is_used_by_all_commands(port: str | None, address: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ROUNDHOUSE_PORT"}
    if port is not None:
        environment["ROUNDHOUSE_PORT"] = port
    code = "from runtime.cli.options import DEFAULT_URL\nprint(DEFAULT_URL)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == address, done.stderr


def test_kubernetes_variable_for_a_service_of_our_name_is_no_port() -> None:
    code = "import sys; from runtime.cli.entry import main; sys.argv = ['roundhouse', 'status', '--help']; main()"
    environment = {**os.environ, "ROUNDHOUSE_PORT": "tcp://10.96.0.17:80"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "10.96.0.17" not in done.stdout
    assert "http://127.0.0.1:8000" in done.stdout


def test_variables_of_other_servers_are_not_used() -> None:
    """The first names a folder for metrics; the second is that of a Service named vllm in Kubernetes."""
    code = (
        "import os, sys; from runtime.cli.entry import main; sys.argv = ['roundhouse', '--version']\n"
        "try: main()\n"
        "except SystemExit: from prometheus_client import values; print(values.ValueClass.__name__)\n"
        "print(os.environ.get('VLLM_PORT'))"
    )
    others = {"PROMETHEUS_MULTIPROC_DIR": "/no-such-folder", "VLLM_PORT": "tcp://10.96.0.17:80"}
    environment = {**os.environ, **others}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("MutexValue\nNone\n"), done.stderr


def test_an_interruption_during_the_imports_is_an_exit_code_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("runtime.cli.main.main", interrupted)
    monkeypatch.setattr(sys, "argv", ["roundhouse", "status"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
