"""`roundhouse fleet ray` refuses some calls before anything is started."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from tests.system.serving import free_port
from tests.unit.cli.conftest import Run

ROOT = Path(__file__).parents[4]


def test_a_faulty_file_and_a_machine_that_is_not_in_it_are_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    missing = run("fleet", "ray", "up", str(file))
    assert missing.exit_code == 2
    assert "cannot be read" in missing.stderr
    file.write_text(f"{{head: a, folder: {tmp_path}, servers: [{{name: node-1, host: a, serve: []}}]}}")
    refused = run("fleet", "ray", "up", str(file), "--host", "b")
    assert refused.exit_code == 2
    assert "no server on b" in refused.stderr


def test_down_ends_nothing_where_ray_does_not_run(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"{{head: a, folder: {tmp_path}, servers: [{{name: node-1, host: b, serve: []}}]}}")
    ended = run("fleet", "ray", "down", str(file), "--host", "b", "--json")
    assert json.loads(ended.stdout) == {"object": "list", "data": []}
    assert "was not running on b" in ended.stderr


@pytest.mark.parametrize("verb", ["up", "down"])
def test_without_ray_one_line_says_which_version_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"{{head: a, folder: {tmp_path}, servers: [{{name: node-1, host: a, serve: []}}]}}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    refused = run("fleet", "ray", verb, str(file))
    assert refused.exit_code == 2
    assert "docs/fleet-ray.md" in refused.stderr
    (ray,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["ray"]
    assert f"Install '{ray}'" in refused.stderr
    assert f"pip install --python .venv '{ray}'" in (ROOT / "docs" / "fleet-ray.md").read_text()
    assert "Traceback" not in refused.stderr


def test_down_is_refused_while_ray_does_not_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cluster.yaml"
    servers = "[{name: node-1, host: 127.0.0.1, serve: []}]"
    file.write_text(f"{{head: 127.0.0.1, port: {free_port()}, folder: {tmp_path}, servers: {servers}}}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "ray").touch()
    refused = run("fleet", "ray", "down", str(file))
    assert refused.exit_code == 1
    assert "Ray is not running on 127.0.0.1" in refused.stderr
