"""Bytes of files in a table, on both databases."""

from dataclasses import replace
from pathlib import Path

import pytest

from batches.content import pieces
from batches.content.pieces import PieceBytes
from batches.files import FileTable
from registry.storage.database import Database
from tests.unit.batches.conftest import FILE

TEXT = b"0123456789abcdef"


@pytest.fixture
def content(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PieceBytes:
    monkeypatch.setattr(pieces, "PIECE", 5)
    monkeypatch.setattr(pieces, "CHUNK", 4)
    return PieceBytes(database, tmp_path)


def store(content: PieceBytes, tmp_path: Path, data: bytes = TEXT) -> None:
    source = tmp_path / "upload"
    source.write_bytes(data)
    content.store("file-1", source)
    assert not source.exists()


def test_any_part_is_read_as_it_was_stored(content: PieceBytes, tmp_path: Path) -> None:
    store(content, tmp_path)
    for offset in range(len(TEXT) + 2):
        for length in range(len(TEXT) + 3):
            assert content.read("file-1", offset, length) == TEXT[offset : offset + length], (offset, length)
    assert list(content.chunks("file-1", 1, 14)) == [b"1234", b"5678", b"9abc", b"d"]
    with content.local_path("file-1") as path:
        assert path.read_bytes() == TEXT
    assert not path.exists()


def test_an_unknown_file_is_missing_and_an_empty_one_is_not(content: PieceBytes, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        content.read("file-1", 0, 1)
    store(content, tmp_path, b"")
    assert content.read("file-1", 0, 1) == b""
    content.delete("file-1")
    with pytest.raises(FileNotFoundError), content.local_path("file-1"):
        pass


def test_a_file_is_replaced_whole(content: PieceBytes, tmp_path: Path) -> None:
    store(content, tmp_path)
    store(content, tmp_path, b"short")
    assert content.read("file-1", 0, 100) == b"short"


def test_a_start_removes_only_this_servers_leftovers(content: PieceBytes, tmp_path: Path) -> None:
    store(content, tmp_path)
    content.incoming.mkdir(parents=True)
    (content.incoming / "half").write_bytes(b"x")
    assert content.keep_only(()) == 0
    assert not list(content.incoming.iterdir())
    assert content.read("file-1", 0, 3) == b"012"


def test_bytes_without_a_row_are_removed_after_a_while(
    content: PieceBytes, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(content, tmp_path)
    assert content.remove_orphans() == 0, "its row may still come"
    monkeypatch.setattr(pieces, "ORPHAN_SECONDS", 0.0)
    FileTable(database).create(replace(FILE, id="file-1"))
    assert content.remove_orphans() == 0
    FileTable(database).remove("file-1")
    assert content.remove_orphans() == 1
    with pytest.raises(FileNotFoundError):
        content.read("file-1", 0, 3)
