"""Files that root creates in another user's folder belong to that user, as when a command runs beside a server."""

import errno
import os
from pathlib import Path

import pytest

from registry.storage.files import give_all, make_private, make_private_file
from tenants.keys import secret
from tenants.storage.opening import open_tables

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files for others")
OTHER = 65534


@pytest.fixture
def others(tmp_path: Path) -> Path:
    folder = tmp_path / "others"
    folder.mkdir(mode=0o700)
    os.chown(folder, OTHER, OTHER)
    return folder


def owners(folder: Path) -> set[tuple[int, int]]:
    return {(status.st_uid, status.st_gid) for path in folder.rglob("*") for status in (path.lstat(),)}


def test_tables_and_pepper_in_new_folders_belong_to_the_folders_user(others: Path) -> None:
    data = others / "new" / "data"
    database = open_tables(data)
    secret.load_pepper(data)
    with database.write():
        assert {path.name for path in data.iterdir()} >= {"tenants.db", "tenants.db-wal", "pepper"}
        assert owners(others) == {(OTHER, OTHER)}
    database.close()


def test_existing_files_keep_their_owner(others: Path, tmp_path: Path) -> None:
    """Otherwise the folder's owner could get a file of root through a link."""
    secret, folder = tmp_path / "secret", tmp_path / "folder"
    secret.touch()
    folder.mkdir()
    (folder / "inner").touch()
    (others / "tenants.db").symlink_to(secret)
    (others / "data").symlink_to(folder)
    make_private_file(others / "tenants.db")
    make_private(others / "data")
    give_all(others)
    assert {path.stat().st_uid for path in (secret, folder, folder / "inner")} == {0}


def test_files_stay_roots_if_root_may_not_change_owners(others: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    for name in ("chown", "fchown"):
        monkeypatch.setattr(os, name, refused)
    make_private(others / "data")
    make_private_file(others / "data" / "file")
    give_all(others)
    assert owners(others) == {(0, 0)}


def test_a_copied_tree_belongs_to_the_folders_user(others: Path) -> None:
    (others / "store" / "one").mkdir(parents=True)
    (others / "store" / "one" / "adapter").touch()
    give_all(others)
    assert owners(others) == {(OTHER, OTHER)}
