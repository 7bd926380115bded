"""Each `--option` and each `roundhouse command` in a message of the server exists."""

import ast
import re
from collections.abc import Iterator

import pytest

from runtime.cli.options import root
from tests.unit.cli.test_help import ALL, parameters

ROOMS = ("adapters", "console", "fleet", "launch", "registry", "routing", "runtime", "tenants")
"""Folders whose texts are checked. `models` also mentions vLLM's options."""
OPTIONS = {option for command in ALL.values() for p in parameters(command) for option in (*p.opts, *p.secondary_opts)}
OTHERS = {
    "--help", "--version", "--gpus", "--pids-limit", "--include", "--local-dir", "--scope", "--collect", "--quiet",
}  # fmt: skip
"""Options of every command, of `roundhouse` itself, of Docker, of `hf download`, and of `systemd-run`."""
RAYS = {"head.py", "processes.py"}
"""Files of `fleet/launchers` that call the commands of Ray and systemd."""
GROUPS = {path[0] for path in ALL if len(path) > 1}


def texts(room: str) -> Iterator[tuple[str, str]]:
    for file in sorted(file for file in (root() / room).rglob("*.py") if file.name not in RAYS):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{file.relative_to(root())}:{node.lineno}", node.value


def unknown(text: str) -> Iterator[str]:
    yield from (o for o in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b(?!-)", text) if o not in OPTIONS | OTHERS)
    for group, command in re.findall(r"\broundhouse ([a-z]+)(?: ([a-z][a-z-]*))?", text):
        if group in GROUPS:
            if command and not any(path[:2] == (group, command) for path in ALL):
                yield f"roundhouse {group} {command}"
        elif f"`roundhouse {group}" in text and (group,) not in ALL:  # without the back quote it may be prose
            yield f"roundhouse {group}"


@pytest.mark.parametrize("room", ROOMS)
def test_each_documented_option_and_command_exists(room: str) -> None:
    result = [f"{where}: {what}" for where, text in texts(room) for what in unknown(text)]
    assert result == []


def test_unknown_options_and_commands_are_found() -> None:
    reported = (
        "Start it with --nonsense, then `roundhouse adapters ad` and `roundhouse nothing`, or `roundhouse models`."
    )
    assert list(unknown(reported)) == ["--nonsense", "roundhouse adapters ad", "roundhouse nothing"]
