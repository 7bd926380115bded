"""`roundhouse adapters combine` and `merge`: the calls, and refusals before any work."""

import json
import os
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from adapters.content.forms import CONFIG, TENSORS
from adapters.store import MARK, Store
from registry.records import AdapterKey, NewVersion
from registry.state.database import State
from registry.state.shared.opening import open_shared
from runtime.config.settings import starter_recipes
from tests.unit.cli.conftest import Run, adapter
from tests.unit.cli.fake_server import FakeServer
from tests.unit.registry.makers import digest


@pytest.mark.parametrize(
    "weights",
    [["--weights", "0.7", "-0.3"], ["--weights", "0.7", "--weights", "-0.3"], ["--weights=0.7", "--weights", "-3e-1"]],
    ids=" ".join,
)
def test_combine_is_one_call(server: FakeServer, run: Run, weights: list[str]) -> None:
    server.on("POST", "/v1/adapters/combine", {**adapter("mixed"), "registered": "v2", "new": True})
    result = run("adapters", "combine", "a", "b@v1", *weights, "--name", "mixed", "--method", "dare", "--seed", "3")
    assert result.exit_code == 0, result.stderr
    assert server.received[-1].json == {
        "name": "mixed", "method": "dare", "density": 0.5, "halves": False, "seed": 3,
        "adapters": [{"name": "a", "weight": 0.7}, {"name": "b@v1", "weight": -0.3}],
    }  # fmt: skip
    assert "mixed: registered, v2 sha256:abababababab, rank 8" in result.stdout


def test_each_adapter_needs_its_weight(server: FakeServer, run: Run) -> None:
    result = run("adapters", "combine", "a", "b", "c", "--weights", "0.7", "0.3", "--name", "mixed")
    assert (result.exit_code, server.received) == (2, [])
    assert "3 adapters and 2 weights" in result.stderr


def test_merge_asks_the_server(server: FakeServer, run: Run) -> None:
    """The server knows models added at run time, and adapters of its data directory."""
    merged = {"object": "merged_model", "folder": "/data/merged/x", "base": "added", "adapter": "legal", "bytes": 2048}
    server.on("POST", "/v1/adapters/added%3Alegal%40prod/merge", merged)
    result = run("adapters", "merge", "added:legal@prod", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == merged
    assert [(one.method, one.body) for one in server.received] == [("POST", b"")]


def test_merged_models_are_listed_and_deleted(server: FakeServer, run: Run) -> None:
    name = "default+chat-legal-abababababab-cdcdcdcdcdcd"
    one = {"name": name, "team": "default", "bytes": 2048, "created": time.time(), "models": ["mine"]}
    server.on("GET", "/v1/merged", {"object": "list", "data": [one]})
    listed = run("adapters", "merged")
    assert listed.exit_code == 0, listed.stderr
    assert [word in listed.stdout for word in (name, "2.0 KiB", "mine")] == [True] * 3
    server.on("DELETE", f"/v1/merged/{quote(name, safe='')}", {"name": name, "deleted": True, "freed_bytes": 2048})
    deleted = run("adapters", "merged", "--remove", name)
    assert (deleted.exit_code, deleted.stdout) == (0, f"{name} deleted: 2.0 KiB freed\n"), deleted.stderr


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with one adapter whose files are missing."""
    with State(tmp_path / "data") as state:
        state.adapters.register(AdapterKey("starter-chat", "legal"), NewVersion(digest(1), 8, 100, "test"))
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("nobody", "no model or adapter 'nobody'", 1),
        ("starter-chat", "is a model", 1),
        ("legal@v7", "no version 'v7'", 1),
        ("legal", "Register the adapter again", 4),
    ],
)
def test_a_merge_that_cannot_be_done_is_refused(
    run: Run, data: Path, name: str, words: str, code: int, tmp_path: Path
) -> None:
    options = ["--recipes", str(starter_recipes()[0]), "--data-dir", str(data)]
    result = run("adapters", "merge", name, "--output", str(tmp_path / "out"), *options)
    assert result.exit_code == code
    assert words in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_node_merges_an_adapter_of_its_fleet(
    run: Run, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "node"
    shared = open_shared(postgres_url, "roundhouse_fleet_merging")
    with State(folder, url=postgres_url, shared=shared) as state:
        state.adapters.register(AdapterKey("starter-chat", "legal"), NewVersion(digest(1), 8, 100, "test"))
    options = ["--recipes", str(starter_recipes()[0]), "--data-dir", str(folder), "--output", str(tmp_path / "out")]
    monkeypatch.setenv("ROUNDHOUSE_DATABASE", postgres_url)
    assert "no model or adapter 'legal'" in run("adapters", "merge", "legal", *options).stderr, (
        "the node itself has none"
    )
    monkeypatch.setenv("ROUNDHOUSE_FLEET", "merging")
    result = run("adapters", "merge", "legal", *options)
    assert (result.exit_code, "Register the adapter again" in result.stderr) == (4, True), "its files are missing"
    monkeypatch.delenv("ROUNDHOUSE_DATABASE")
    result = run("adapters", "merge", "legal", *options)
    assert (result.exit_code, "ROUNDHOUSE_DATABASE" in result.stderr) == (2, True)


def test_without_room_nothing_begins(run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.compose.model.LIBRARIES", 1 << 60)
    stored = Store(data / "store").path(digest(1))
    stored.mkdir(parents=True)
    for name in (CONFIG, TENSORS):
        (stored / name).write_bytes(b"x")
        os.utime(stored / name, ns=(MARK, MARK))
    options = ["--recipes", str(starter_recipes()[0]), "--data-dir", str(data)]
    result = run("adapters", "merge", "legal", "--output", str(tmp_path / "models" / "out"), *options)
    assert result.exit_code == 1
    assert "needs about 1.0 EiB of memory, and" in result.stderr
    assert not list((tmp_path / "models").iterdir())


def test_existing_files_are_not_overwritten(run: Run, data: Path, tmp_path: Path) -> None:
    options = ["--recipes", str(starter_recipes()[0]), "--data-dir", str(data)]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    result = run("adapters", "merge", "legal", "--output", str(tmp_path / "out"), *options)
    assert result.exit_code == 1
    assert "not empty" in result.stderr
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_data_directory_is_only_read(run: Run, tmp_path: Path) -> None:
    result = run("adapters", "merge", "legal", "-o", str(tmp_path / "out"), "--data-dir", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "No server has used" in result.stderr
    assert not (tmp_path / "none").exists()
