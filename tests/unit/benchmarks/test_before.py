"""An earlier checkout of Roundhouse takes part in a benchmark if it is named."""

from pathlib import Path

import pytest

from benchmarks.adapters.pair import pair
from benchmarks.harness import RunSettings
from benchmarks.models import chat
from benchmarks.peers.servers import BEFORE, Before, Roundhouse
from benchmarks.report.environment import ROOT


def test_the_earlier_checkout_is_a_separate_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RunSettings(quick=True, tiny=True, smoke=True, seed=0, work=tmp_path)
    model = chat(settings, tmp_path / "adapters", device=2, host=4)
    folder = tmp_path / "adapters" / "servers"
    monkeypatch.delenv(BEFORE, raising=False)
    assert [server.name for server in pair(model, folder)] == ["roundhouse", "vllm serve"]
    monkeypatch.setenv(BEFORE, str(tmp_path / "older"))
    today, _, older = pair(model, folder)
    assert isinstance(older, Before)
    assert isinstance(older, Roundhouse), "adapters are registered at both"
    assert (older.name, older.root, older.variables()["PYTHONPATH"]) == (
        "before", tmp_path / "older", str(tmp_path / "older"),
    )  # fmt: skip
    assert older.folder != today.folder
    assert older.folder.parent == today.folder.parent, "both may read adapters' files from there"
    assert older.port != today.port


def test_results_do_not_name_the_checkouts_folder(tmp_path: Path) -> None:
    server = Roundhouse("starter-chat", tmp_path, [ROOT / "recipes" / "starter"])
    assert str(ROOT) in " ".join(server.command())
    assert str(ROOT) not in server.portable_command
    assert "--recipes recipes/starter" in server.portable_command
