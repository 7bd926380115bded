"""Each command's help has a first line, an example, and a text for each option."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
import typer.main

from runtime.cli.main import app
from tests.unit.cli.conftest import Run


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def parameters(command: Any) -> list[Any]:
    return list(command.get_params(typer.Context(command)))


ALL = dict(commands(typer.main.get_command(app)))


def test_the_list_of_commands() -> None:
    of_models = ("list", "show", "load", "unload", "pin", "unpin", "plan", "forget-estimate")
    changes = ("add", "check", "edit", "remove", "export", "cancel", "reload")
    models = {("models", name) for name in (*of_models, *changes)}
    names = (
        "list",
        "add",
        "show",
        "remove",
        "alias",
        "rollback",
        "pin",
        "unpin",
        "share",
        "validate",
        "combine",
        "merge",
        "merged",
    )
    keys = {("keys", name) for name in ("list", "create", "rotate", "revoke")}
    teams = {("teams", name) for name in ("list", "create", "apply", "edit", "archive", "restore")}
    teams |= {("usage", name) for name in ("report", "daily", "compare", "reconcile", "prune")}
    teams |= {("limits", name) for name in ("list", "set", "remove", "simulate")}
    answers = ("add", "alias", "eval", "explain", "fit", "list", "remove", "report", "rollback", "show")
    routing = {("routers", name) for name in answers} | {
        ("providers", name) for name in ("list", "show", "add", "edit", "remove", "test")
    }
    single = (
        "serve",
        "doctor",
        "backup",
        "restore",
        "validate",
        "status",
        "signal",
        "top",
        "logs",
        "chat",
        "embed",
        "rerank",
        "transcribe",
        "version",
    )
    adapters = {("adapters", name) for name in names}
    batches = {
        ("batch", name) for name in ("run", "list", "show", "watch", "cancel", "results", "deliveries", "redeliver")
    }
    batches |= {("files", name) for name in ("upload", "list", "get", "delete")}
    batches |= {("webhooks", name) for name in ("list", "create", "rotate", "test", "delete", "secret")}
    fleet = {("fleet", name) for name in ("status", "nodes", "drain", "undrain", "simulate", "import")}
    fleet |= {("fleet", name) for name in ("place", "plan", "explain", "signal")}
    fleet |= {("fleet", "ca", name) for name in ("init", "issue", "renew")}
    fleet |= {("fleet", "ray", name) for name in ("up", "down")}
    assert set(ALL) == fleet | batches | models | keys | teams | routing | adapters | {(name,) for name in single}


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_each_command_has_complete_help(path: tuple[str, ...], run: Run) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"roundhouse {' '.join(path)}" in " ".join(result.stdout.split())
    for parameter in parameters(ALL[path]):
        assert parameter.help, f"{parameter.name} has no help"


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_json(path: tuple[str, ...]) -> None:
    assert "--json" in {option for parameter in parameters(ALL[path]) for option in parameter.opts}


def test_help_lists_exit_codes(run: Run) -> None:
    reported = " ".join(run("--help").stdout.split())
    for word in ("0 done", "1 refused", "2 wrong usage", "3 no server", "4 the server failed", "130 interrupted"):
        assert word in reported
