"""The store commits adapters whole or not at all, and detects all changes."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adapters.check_process import check
from adapters.jobs import Job
from adapters.store import MARK, AdapterNotes, Store
from adapters.types import Base
from registry.bounds import Bounds
from registry.errors import EngineFailed
from tests.unit.adapters.makers import write_adapter

TENSORS = "adapter_model.safetensors"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    store.start()
    return store


def put(store: Store, base: Base, folder: Path) -> str:
    """Check `folder` and commit its normal form."""
    with store.writing() as out:
        answer = check(Job(source=folder, base=base, bounds=Bounds(), out=out))
        assert answer.outcome == "fit"
        store.commit(out, answer.digest)
    return answer.digest


@pytest.fixture
def digest(store: Store, base: Base, folder: Path) -> str:
    return put(store, base, write_adapter(folder))


def test_a_commit_is_read_only_and_marked_and_leaves_nothing_else(store: Store, digest: str) -> None:
    path = store.check(digest)
    assert path == store.path(digest) == store.verify(digest)
    assert path.is_absolute()
    assert {file.name for file in path.iterdir()} == {"adapter_config.json", TENSORS}
    for file in path.iterdir():
        assert file.stat().st_mode & 0o222 == 0
        assert file.stat().st_mtime_ns == MARK
    assert path.stat().st_mode & 0o222 == 0
    assert [entry.name for entry in store.root.iterdir()] == [path.name]
    assert store.digests() == [digest]


@pytest.mark.parametrize(
    "harm", ["file gone", "folder gone", "byte changed", "cut", "replaced by a link", "linked", "config"]
)
def test_damage_is_found_by_the_quick_check(harm: str, store: Store, digest: str, tmp_path: Path) -> None:
    path = store.path(digest)
    os.chmod(path, 0o755)
    file = path / ("adapter_config.json" if harm == "config" else TENSORS)
    os.chmod(file, 0o644)
    if harm == "folder gone":
        shutil.rmtree(path)
    elif harm == "file gone":
        file.unlink()
    elif harm == "replaced by a link":
        file.unlink()
        file.symlink_to(tmp_path / "elsewhere")
    elif harm == "linked":  # to other weights with the same times
        (tmp_path / "other").write_bytes(b"other weights")
        os.utime(tmp_path / "other", ns=(MARK, MARK))
        file.unlink()
        file.symlink_to(tmp_path / "other")
    elif harm == "cut":
        os.truncate(file, 100)
    else:
        data = bytearray(file.read_bytes())
        data[-5] ^= 1
        file.write_bytes(data)
    with pytest.raises(EngineFailed, match="Register the adapter again") as refused:
        store.check(digest)
    assert refused.value.code == "adapter_damaged"


def test_damage_that_stat_does_not_show_is_found_by_the_full_check(store: Store, digest: str) -> None:
    file = store.path(digest) / TENSORS
    os.chmod(file, 0o644)
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(MARK, MARK))
    store.check(digest)
    with pytest.raises(EngineFailed, match="content has changed"):
        store.verify(digest)


def test_a_copied_store_is_hashed_once_and_trusted_again(store: Store, digest: str) -> None:
    for file in store.path(digest).iterdir():
        os.utime(file)
    store.check(digest)
    assert all(file.stat().st_mtime_ns == MARK for file in store.path(digest).iterdir())


def test_a_damaged_digest_is_replaced_by_the_next_commit(store: Store, digest: str, base: Base, folder: Path) -> None:
    (store.path(digest) / TENSORS).unlink()
    assert put(store, base, folder) == digest
    store.verify(digest)
    assert len(list(store.root.iterdir())) == 1


def test_many_writers_of_one_digest(store: Store, base: Base, folder: Path, tmp_path: Path) -> None:
    normal = tmp_path / "normal"
    normal.mkdir()
    answer = check(
        Job(source=write_adapter(folder), base=base, bounds=Bounds(), out=normal)
    )  # works only in the main thread
    together = threading.Barrier(8)

    def write(_: int) -> None:
        with store.writing() as out:
            shutil.copytree(normal, out, dirs_exist_ok=True)
            together.wait()
            store.commit(out, answer.digest)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))  # raises the error of any of them
    store.verify(answer.digest)
    assert len(list(store.root.iterdir())) == 1


def test_leftovers_of_an_ended_process_are_removed_at_the_start(store: Store, digest: str) -> None:
    (store.root / "tmp-old").mkdir()
    (store.root / "tmp-old" / TENSORS).write_bytes(b"half")
    os.chmod(store.root / "tmp-old", 0o555)
    assert Store(store.root).start() == 1
    assert store.digests() == [digest]


def test_an_error_while_writing_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with store.writing() as out:
        (out / "adapter_config.json").write_bytes(b"x")
        (out / TENSORS).write_bytes(b"x")
        monkeypatch.setattr(os, "rename", full)
        with pytest.raises(OSError, match="No space"):
            store.commit(out, "sha256:" + "0" * 64)
    monkeypatch.undo()
    assert not list(store.root.iterdir())


def test_removing_twice_is_no_error(store: Store, digest: str) -> None:
    store.remove(digest)
    store.remove(digest)
    assert not list(store.root.iterdir())


@pytest.mark.parametrize("damage", [b"", b"[1]", b"{", b'["\xff"]'])
def test_damaged_notes_count_as_none(tmp_path: Path, damage: bytes) -> None:
    digest = "sha256:" + "1" * 64
    AdapterNotes(tmp_path / "notes").write(digest, ("one",))
    (file,) = (tmp_path / "notes").iterdir()
    file.write_bytes(damage)
    assert AdapterNotes(tmp_path / "notes").of(digest) == ()


def test_notes_survive_a_restart_and_are_removed_with_their_adapter(tmp_path: Path) -> None:
    first, second = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    notes = AdapterNotes(tmp_path / "notes")
    notes.write(first, ("one", "two"))
    notes.write(second, ("three",))
    assert (notes.of(first), notes.of(second)) == (("one", "two"), ("three",))
    again = AdapterNotes(tmp_path / "notes")
    assert (again.of(first), again.of(second)) == (("one", "two"), ("three",))
    again.write(first, ())
    again.remove(second)
    again.remove(second)
    for later in (again, AdapterNotes(tmp_path / "notes")):
        assert (later.of(first), later.of(second)) == ((), ())


NO_ONE = """
import os, sys
from pathlib import Path
from adapters.content.digest import digest_of
from adapters.store import Store

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
store = Store(Path(sys.argv[1]) / "store")
store.start()

def put():
    with store.writing() as out:
        (out / "adapter_config.json").write_bytes(b"{}")
        (out / "adapter_model.safetensors").write_bytes(b"abc")
        digest = digest_of(b"{}", iter([b"abc"]))
        store.commit(out, digest)
    return digest

digest = put()
damaged = store.path(digest) / "adapter_model.safetensors"
os.chmod(damaged, 0o644)
damaged.write_bytes(b"abX")
put()
store.verify(digest)
store.remove(digest)
print(os.geteuid(), list(store.root.iterdir()))
"""


def test_an_ordinary_user_can_replace_and_remove_adapters() -> None:
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path, which only its owner may enter
        os.chmod(folder, 0o777)
        child = subprocess.run(
            [sys.executable, "-c", NO_ONE, folder], capture_output=True, text=True, timeout=200, check=False
        )
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == [str(os.geteuid() or 65534), "[]"]


def test_a_commit_that_loses_all_races_is_an_error(
    store: Store, base: Base, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not report as stored what is not there."""
    first = put(store, base, write_adapter(folder))
    write = Path(store.path(first), TENSORS).read_bytes()

    def remove(digest: str) -> None:
        """Another process has damaged files there again before the next step."""

    monkeypatch.setattr(store, "remove", remove)
    monkeypatch.setattr(store, "_is_sound", lambda _: False)
    with pytest.raises(EngineFailed, match="again and again") as failed:
        put(store, base, folder)
    assert failed.value.code == "adapter_damaged"
    assert Path(store.path(first), TENSORS).read_bytes() == write


def test_a_damaged_digest_that_a_collection_removes_meanwhile_is_replaced(
    store: Store, digest: str, base: Base, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_sound(found: str) -> bool:
        store._set_aside(store.path(found))
        return False

    monkeypatch.setattr(store, "_is_sound", is_sound)
    assert put(store, base, folder) == digest
    store.verify(digest)
