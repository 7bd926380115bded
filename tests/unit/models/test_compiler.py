"""What is compiled here is kept whole."""

import os
from pathlib import Path

import pytest

from models.native import build


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never compiled again, and half of it is code that an engine would run."""
    compiler, source, folder = tmp_path / "compiler", tmp_path / "sums.c", tmp_path / "made"
    compiler.write_text('#!/bin/sh\ncp "$3" "$2"\n')
    compiler.chmod(0o755)
    source.write_text("int x;")
    synced: list[tuple[str, bool]] = []

    def sync(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((path.suffix, bool(list(folder.glob("*.so")))))

    monkeypatch.setattr("registry.storage.files.os.fsync", sync)
    monkeypatch.setenv("CC", str(compiler))
    made = build(folder, "sums", [source], [])
    assert made.read_text() == "int x;"
    assert (".so", False) in synced
    synced.clear()
    assert build(folder, "sums", [source], []) == made
    assert synced == []


def test_a_folder_that_cannot_be_made_is_refused_with_the_systems_reason(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(OSError, match="Not a directory"):
        build(tmp_path / "cache" / "native", "sum", [], [])
