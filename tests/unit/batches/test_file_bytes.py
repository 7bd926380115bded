"""Files' bytes are stored whole or not at all, read from any offset, and removed with their ids."""

import os
from pathlib import Path

import pytest

from batches.content.folder import FolderBytes
from batches.content.protocol import CHUNK, FileBytes

CONTENT = bytes(range(256)) * 4096
"""Four chunks."""


@pytest.fixture
def stored(tmp_path: Path) -> FileBytes:
    return FolderBytes(tmp_path)


def store(stored: FileBytes, file_id: str, content: bytes) -> None:
    stored.incoming.mkdir(parents=True, exist_ok=True)
    source = stored.incoming / "half"
    source.write_bytes(content)
    stored.store(file_id, source)
    assert not source.exists()


def test_bytes_are_read_whole_and_in_parts(stored: FileBytes) -> None:
    store(stored, "file-a", CONTENT)
    size = len(CONTENT)
    assert b"".join(stored.chunks("file-a", 0, size)) == CONTENT
    assert stored.read("file-a", CHUNK - 5, 10) == CONTENT[CHUNK - 5 : CHUNK + 5]
    assert b"".join(stored.chunks("file-a", CHUNK - 1, 2 * CHUNK + 1)) == CONTENT[CHUNK - 1 : 2 * CHUNK + 1]
    assert stored.read("file-a", size - 3, 10) == CONTENT[-3:]
    with stored.local_path("file-a") as path:
        assert path.read_bytes() == CONTENT


def test_no_file_stays_open(stored: FileBytes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store(stored, "file-a", CONTENT)
    stored.read("file-a", 0, 1)
    list(stored.chunks("file-a", 0, 1))
    assert len(os.listdir("/proc/self/fd")) == before


def test_other_users_of_the_machine_may_not_read_them(stored: FileBytes) -> None:
    store(stored, "file-a", b"text")
    with stored.local_path("file-a") as path:
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_unknown_files_are_not_found(stored: FileBytes) -> None:
    stored.delete("file-a")
    with pytest.raises(FileNotFoundError):
        stored.read("file-a", 0, 1)
    with pytest.raises(FileNotFoundError):
        next(stored.chunks("file-a", 0, 1))
    with pytest.raises(FileNotFoundError), stored.local_path("file-a"):
        pass


def test_files_without_a_row_are_removed_at_a_start(stored: FileBytes) -> None:
    assert stored.keep_only(()) == 0
    for name in ("file-a", "file-b", "file-c"):
        store(stored, name, name.encode())
    (stored.incoming / "cut-off").write_bytes(b"half")
    assert stored.keep_only({"file-b"}) == 2
    assert list(stored.incoming.iterdir()) == []
    assert stored.read("file-b", 0, 6) == b"file-b"
    with pytest.raises(FileNotFoundError):
        stored.read("file-a", 0, 1)


def test_a_deleted_file_is_gone(stored: FileBytes) -> None:
    store(stored, "file-a", b"text")
    stored.delete("file-a")
    with pytest.raises(FileNotFoundError):
        stored.read("file-a", 0, 1)
