"""What makes a folder another revision of a model."""

import os
from pathlib import Path

import pytest

from models.sources.resolve import resolve, revision
from registry.recipes.fields import PathSource


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "modeling_own.py", "below/modeling_own.py"])
def test_other_weights_settings_or_code_are_another_revision(tmp_path: Path, name: str) -> None:
    source = PathSource(path=str(tmp_path))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("one")
    before = revision(source, tmp_path)
    (tmp_path / "notes.pdf").write_text("nobody reads it")
    assert revision(source, tmp_path) == before
    (tmp_path / name).write_text("another")
    assert revision(source, tmp_path) != before


def test_other_weights_of_the_same_size_and_time_are_another_revision(tmp_path: Path) -> None:
    """`cp -p`, `rsync -t` and image builders set the time of the last modification."""
    source, file = PathSource(path=str(tmp_path)), tmp_path / "model.safetensors"
    file.write_text("one")
    before, times = revision(source, tmp_path), file.stat()
    file.write_text("two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert revision(source, tmp_path) != before


def test_a_link_to_a_folder_is_followed_at_each_load(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(name)
    current, source = tmp_path / "current", PathSource(path="current")
    current.symlink_to("old")
    path = resolve(source, tmp_path)
    before = revision(source, path)
    current.unlink()
    current.symlink_to("new")
    assert revision(source, path) != before


def test_files_behind_a_link_to_a_folder_count(tmp_path: Path) -> None:
    """Libraries read a linked `1_Pooling` like any other."""
    model, pooling = tmp_path / "model", tmp_path / "pooling"
    for folder in (model, pooling):
        folder.mkdir()
        (folder / "config.json").write_text("one")
    (model / "1_Pooling").symlink_to(pooling)
    (pooling / "back").symlink_to(model)
    before = revision(PathSource(path=str(model)), model)
    (pooling / "config.json").write_text("another")
    assert revision(PathSource(path=str(model)), model) != before
