"""What is deleted of a hub's cache, and what another model still needs."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from models.sources.repository import purge
from registry.recipes.fields import HubSource

COMMIT, NEWER = "a" * 40, "b" * 40
SIZE = 1000


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one repository: `main` is its only commit, and of another file a part has come."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--m"
    for name in ("blobs", "refs"):
        (repository / name).mkdir(parents=True)
    commit(repository, COMMIT)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "blobs" / "y.part").write_bytes(b"123")
    return repository


def commit(repository: Path, name: str) -> Path:
    (repository / "blobs" / name[:4]).write_bytes(name[:1].encode() * SIZE)
    snapshot = repository / "snapshots" / name
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{name[:4]}")
    return snapshot


def source(revision: str, hub: str = "org/m") -> HubSource:
    return HubSource(hub=hub, revision=revision)


@pytest.mark.parametrize("gone", ["main", COMMIT])
def test_unused_files_are_deleted_with_partial_downloads(repository: Path, gone: str) -> None:
    assert purge([source(gone)], [source("main", "org/other")]) == SIZE + 3
    assert not list(repository.parent.rglob("*.safetensors"))
    assert not list(repository.parent.rglob("*.part"))


@pytest.mark.parametrize(("gone", "kept"), [(COMMIT, "main"), ("main", COMMIT)])
def test_a_branch_and_its_commit_are_the_same_files(repository: Path, gone: str, kept: str) -> None:
    assert purge([source(gone)], [source(kept)]) == 0
    assert (repository / "snapshots" / COMMIT / "model.safetensors").stat().st_size == SIZE
    assert (repository / "blobs" / "y.part").exists(), "it may be the kept one's"


def test_what_an_engine_reads_stays_though_its_branch_has_moved_on(repository: Path) -> None:
    commit(repository, NEWER)
    (repository / "refs" / "main").write_text(NEWER)
    assert purge([source(COMMIT)], [source("main")], [repository / "snapshots" / COMMIT]) == 0
    assert purge([source(COMMIT)], [source("main")]) == SIZE
    assert (repository / "snapshots" / NEWER / "model.safetensors").exists()


def test_what_is_on_its_way_for_another_revision_stays(repository: Path) -> None:
    assert purge([source("main")], [source(NEWER)]) == SIZE
    assert [file.name for file in repository.rglob("*") if file.is_file()] == ["y.part"]
    assert purge([source(NEWER)]) == 3
    assert not list(repository.rglob("*.part"))
