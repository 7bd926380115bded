"""`roundhouse validate` on recipes that are right and wrong."""

import json
from pathlib import Path

import pytest

from runtime.cli.options import root
from tests.unit.cli.conftest import Run

SETS = sorted(path.name for path in (root() / "recipes").iterdir() if path.is_dir())
BAD = """id: m
version: 1
task: chat
source: {path: weights}
engine: {name: vllm}
memory: {kv_cash: 1GiB}
batching: {max_requests: 0}
"""


@pytest.mark.parametrize("name", SETS)
def test_the_recipes_that_ship_are_right(run: Run, name: str) -> None:
    result = run("validate", str(root() / "recipes" / name))
    assert result.exit_code == 0, result.stderr


def test_every_fault_has_its_file_and_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    result = run("validate", str(file))
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0] == "error: The recipes have 2 faults."
    assert "bad.yaml:6: " in lines[1]
    assert "bad.yaml:7: " in lines[2]


def test_json(run: Run, tmp_path: Path) -> None:
    told = json.loads(run("validate", str(root() / "recipes/starter"), "--json").stdout)
    assert "starter-chat" in told["recipes"]
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    assert len(json.loads(run("validate", str(file), "--json").stdout)["error"]["faults"]) == 2


def test_nothing_there(run: Run, tmp_path: Path) -> None:
    assert run("validate", str(tmp_path / "nothing.yaml")).exit_code == 1


def test_sources_that_are_not_there(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("id: m\nversion: 1\ntask: chat\nsource: {path: weights}\nengine: {name: vllm}\n")
    assert run("validate", str(file)).exit_code == 0
    assert run("validate", str(file), "--sources").exit_code == 1
