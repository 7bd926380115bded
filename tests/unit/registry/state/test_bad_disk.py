"""Full, read-only, foreign and damaged disks: their errors, and the syncs before anything is reported."""

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from registry.errors import Unavailable
from registry.names import DEFAULT_TEAM
from registry.records import RouterKey
from registry.state.database import State
from registry.storage.database import Database, driver_message, file_url, translate_errors
from registry.storage.files import is_full, sync_all, unusable
from tenants.keys import secret
from tenants.keys.accounts import AccountTable
from tenants.keys.records import KeyRequest
from tenants.keys.table import KeyTable
from tenants.limits.records import Kind, Limit
from tenants.limits.table import LimitTable
from tenants.storage.opening import open_tables
from tests.unit.registry.makers import KEY, digest, new


def fault(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


@pytest.mark.parametrize(
    ("number", "reported"),
    [(errno.EACCES, "has to own it"), (errno.EROFS, "Mount its disk"), (errno.ENOSPC, "Make room"), (errno.EIO, "")],
)
def test_an_error_of_a_file_says_what_to_do(number: int, reported: str, tmp_path: Path) -> None:
    words = unusable(fault(number, tmp_path / "x"))
    assert words.startswith(f"{tmp_path / 'x'} cannot be read or created: {os.strerror(number)}.")
    assert reported in words
    assert ("has to own it" in words) == (number == errno.EACCES)


def test_a_share_without_locks_or_mapped_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMMAP
    with pytest.raises(Unavailable, match="like some network shares"), translate_errors():
        raise error
    (tmp_path / "x.db").mkdir()
    with closing(Database(file_url(tmp_path / "x.db"), read_only=True)) as database:
        with pytest.raises(Unavailable) as reported, database.read():
            pass
        assert driver_message(reported.value) == "", "SQLite's words say nothing more"

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(Unavailable, match=r"cannot be locked: No locks available\. Name a data directory"):
        open_tables(tmp_path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_the_error_of_an_unusable_database_names_its_file(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The errors were wrong: no answer, a full disk, or another owner of a file that cannot be written."""
    State(tmp_path).close()
    open_tables(tmp_path).close()

    def refused(path: Path) -> None:
        raise fault(number, path)

    monkeypatch.setattr(Path, "touch", refused)
    for opened, name in ((State, "state.db"), (open_tables, "tenants.db")):
        with pytest.raises(Unavailable) as reported:
            opened(tmp_path)
        assert reported.value.message == unusable(fault(number, tmp_path / name))


def test_a_database_whose_log_cannot_be_made_is_reported(tmp_path: Path) -> None:
    State(tmp_path).close()
    (tmp_path / "state.db-wal").mkdir()
    with pytest.raises(Unavailable, match="cannot be opened or written"):
        State(tmp_path)


def test_a_database_that_another_program_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.storage.database.BUSY_SECONDS", 0.0)
    with State(tmp_path) as state, closing(sqlite3.connect(state.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="Another program locks"):
            state.adapters.register(KEY, new(1))


def test_an_unusable_pepper_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pepper").write_bytes(b"\xff" * 64)
    with pytest.raises(Unavailable, match="damaged"):
        secret.load_pepper(tmp_path)

    def full(**_: object) -> None:
        raise fault(errno.ENOSPC, tmp_path)

    (tmp_path / "pepper").unlink()
    monkeypatch.setattr("tenants.keys.secret.tempfile.mkstemp", full)
    with pytest.raises(Unavailable, match="Make room"):
        secret.load_pepper(tmp_path)


def test_a_full_disk_is_recognised_without_an_errno(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nameless = Exception("No space left on device (os error 28)")
    assert not is_full(nameless, tmp_path / "not" / "there")
    assert is_full(fault(errno.EDQUOT, tmp_path), tmp_path)
    assert not is_full(fault(errno.EIO, tmp_path), tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))  # type: ignore[attr-defined]
    assert is_full(nameless, tmp_path / "not" / "there")


def test_a_folder_is_synced_with_all_its_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("x")
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    synced = set[str]()
    monkeypatch.setattr("registry.storage.files.os.fsync", lambda at: synced.add(os.readlink(f"/proc/self/fd/{at}")))
    sync_all(tmp_path / "a")
    assert synced == {str(tmp_path / one) for one in ("a", "a/b", "a/b/file")}


def test_every_reported_change_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure a revoked key could have become valid again."""
    synced: list[Database] = []
    monkeypatch.setattr(Database, "sync", lambda one: synced.append(one))
    with State(tmp_path) as state:
        promises: list[Callable[[], object]] = [
            lambda: state.adapters.register(KEY, new(1)),
            lambda: state.routers.register(RouterKey("auto"), digest(2), 100, "test"),
            lambda: state.models.set_pin("m", True),
            lambda: state.models.set_alias("a", "m"),
        ]
        database = open_tables(tmp_path)
        keys, limits = KeyTable(database, secret.load_pepper(tmp_path)), LimitTable(database)
        key, _ = keys.create(KeyRequest(DEFAULT_TEAM))
        limit = Limit("lim_1", "team", DEFAULT_TEAM, Kind.REQUESTS, 5)
        promises += [
            lambda: keys.create_team("search"),
            lambda: keys.edit_team("search", weight=2.0),
            lambda: keys.archive("search", True),
            lambda: keys.revoke(key.id),
            lambda: limits.set(limit),
            lambda: AccountTable(database).create(DEFAULT_TEAM, "nightly"),
        ]
        for write_durably in promises:
            synced.clear()
            write_durably()
            assert len(synced) == 1
        database.close()
