"""Backups: their contents, also of servers with PostgreSQL, and full or failing disks."""

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapters.content.forms import CONFIG, TENSORS
from adapters.store import MARK, AdapterNotes, Store
from batches.callbacks.outbox import OutboxTable
from batches.callbacks.webhooks import WebhookTable
from batches.content.folder import FolderBytes
from batches.files import FileTable
from batches.lines import LineTable
from batches.records import BatchRecord, FileRecord, NewLine
from batches.runners import RateTable, RunnerTable
from batches.storage.opening import has_tables, prepare
from batches.store import BatchTables
from batches.table import BatchTable
from launch.recipe_store import RecipeFiles
from registry.errors import EngineFailed
from registry.recipes.fields import PathSource
from registry.state.database import REMOTE_MARK, State
from registry.storage.files import server_id
from runtime.cli.failures import RefusedError
from runtime.cli.local import backup
from runtime.cli.local.backup import back_up, restore
from runtime.cli.local.data_dir import HALF_RESTORED, DataDir
from tenants.responses.table import ResponseTable
from tenants.storage.opening import open_tables
from tests.unit.registry.makers import KEY, new


def test_a_servers_state_in_postgresql_is_copied(tmp_path: Path, postgres_url: str) -> None:
    data, first = tmp_path / "data", new(1)
    with State(data) as old:
        old.adapters.register(KEY, new(2))  # from before it had a PostgreSQL
    with State(data, url=postgres_url) as state:
        state.adapters.register(KEY, first, "prod")
        state.adapters.delete_version(KEY, "v1")
        (data / "store" / first.digest.removeprefix("sha256:")).mkdir(parents=True)
        with pytest.raises(RefusedError, match="ROUNDHOUSE_DATABASE"):
            back_up(data, tmp_path / "copy", pepper=False)
        back_up(data, tmp_path / "copy", pepper=False, url=postgres_url)
        kept = state.adapters.all()
    restore(tmp_path / "copy", tmp_path / "new")
    for url in (None, postgres_url):
        with State(tmp_path / "new", url=url) as again:
            assert again.adapters.all() == kept
            assert again.adapters.get(KEY).current.number == 2


def test_a_merged_model_can_be_served_after_a_restore(tmp_path: Path) -> None:
    data, other_place = tmp_path / "zo\xeb's: data", tmp_path / "mine"
    with State(data):
        pass
    (data / "merged" / "base-legal-0123").mkdir(parents=True)
    (data / "merged" / "base-legal-0123" / "model.safetensors").write_bytes(b"weights")
    (data / "merged" / ".base-sql-4567-half").mkdir()
    (data / "recipes").mkdir()
    for name, folder in (("legal", data / "merged" / "base-legal-0123"), ("mine", other_place)):
        recipe = yaml.safe_dump(
            {"id": name, "version": 1, "task": "chat", "source": {"path": str(folder)}, "engine": {"name": "vllm"}}
        )
        (data / "recipes" / f"{name}@1.yaml").write_text(recipe)
    (data / "recipes" / "broken@1.yaml").write_text("source: [")
    (data / "recipes" / "no-text@1.yaml").write_bytes(b"caf\xe9: 2026-13-45")
    back_up(data, tmp_path / "copy", pepper=False)
    restore(tmp_path / "copy", tmp_path / "new")
    result = {one.id: one.source for one in RecipeFiles(tmp_path / "new" / "recipes").read().recipes}
    legal, mine = result["legal"], result["mine"]
    assert isinstance(legal, PathSource)
    assert Path(legal.path).resolve() == tmp_path / "new" / "merged" / "base-legal-0123"
    assert (Path(legal.path) / "model.safetensors").read_bytes() == b"weights"
    assert mine == PathSource(path=str(other_place))
    assert [one.name for one in (tmp_path / "new" / "merged").iterdir()] == ["base-legal-0123"], (
        "without the half-made ones"
    )


def test_models_whose_names_begin_like_unfinished_parts_are_copied(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with State(data):
        pass
    models = [Path("recipes", "incoming-mail@1.yaml"), Path("merged", "tmp-legal-0123", "model.safetensors")]
    unfinished = [
        Path("store", "tmp-1", "x"),
        Path("files", "incoming", "x"),
        Path("merged", ".tmp-legal-0123-half", "x"),
    ]
    for file in (*models, *unfinished):
        (data / file).parent.mkdir(parents=True)
        (data / file).write_text("x")
    back_up(data, tmp_path / "copy", pepper=False, files=True)
    assert [file for file in (*models, *unfinished) if (tmp_path / "copy" / file).exists()] == models


def test_a_backup_without_the_postgresql_is_refused(tmp_path: Path) -> None:
    """The file that the server had before is not copied instead."""
    data = tmp_path / "data"
    with State(data):
        pass
    (data / REMOTE_MARK).touch()
    with pytest.raises(RefusedError, match="ROUNDHOUSE_DATABASE"):
        back_up(data, tmp_path / "copy", pepper=False)
    assert not (tmp_path / "copy").exists()
    with State(data):
        pass
    back_up(data, tmp_path / "copy", pepper=False)


def test_a_server_with_a_ledger_is_copied(tmp_path: Path) -> None:
    """A ledger gives a server a name, as PostgreSQL does."""
    data = tmp_path / "data"
    with State(data):
        server_id(data)
        back_up(data, tmp_path / "copy", pepper=False)
    assert not (tmp_path / "copy" / "server-id").exists()


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def broken(*_: Any) -> None:
    raise sqlite3.OperationalError("disk I/O error")


def test_no_server_can_use_a_directory_during_its_restore(tmp_path: Path) -> None:
    data, again = tmp_path / "data", tmp_path / "again"
    with State(data):
        back_up(data, tmp_path / "copy", pepper=False)
    real = backup._copy_folders

    def meanwhile(source: Path, target: Path, folders: Sequence[str]) -> None:
        with pytest.raises(RefusedError), DataDir(again, "http://127.0.0.1:1"):
            pass
        real(source, target, folders)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(backup, "_copy_folders", meanwhile)
        restore(tmp_path / "copy", again)
    with DataDir(again, "http://127.0.0.1:1"):
        pass


def test_files_that_a_server_made_just_before_a_restore_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, again = tmp_path / "data", tmp_path / "again"
    with State(data):
        back_up(data, tmp_path / "copy", pepper=False)

    def made(folder: Path) -> None:
        folder.mkdir()
        (folder / "tenants.db").write_bytes(b"keys")

    monkeypatch.setattr(backup, "make_private", made)
    with pytest.raises(RefusedError, match="not empty"):
        restore(tmp_path / "copy", again)
    assert (again / "tenants.db").read_bytes() == b"keys"


def test_a_full_disk_leaves_no_half_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, copy, again = (tmp_path / name for name in ("data", "copy", "again"))
    with State(data) as state:
        state.adapters.register(KEY, new(1))
    stored = data / "store" / new(1).digest.removeprefix("sha256:")
    stored.mkdir(parents=True)
    (stored / "weights").write_bytes(b"x")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(RefusedError, match="No space left"):
            back_up(data, copy, pepper=False)
    assert not copy.exists()
    back_up(data, copy, pepper=False)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(RefusedError, match="No space left"):
            restore(copy, again)
    assert list(again.iterdir()) == []
    with monkeypatch.context() as patched:
        patched.setattr(backup, "copy_database", broken)
        with pytest.raises(RefusedError, match="disk I/O error"):
            back_up(data, tmp_path / "second", pepper=False)
    assert not list(tmp_path.glob("*second*"))
    restore(copy, again)
    assert (again / "store" / stored.name / "weights").read_bytes() == b"x"


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from runtime.cli.local.backup import _delete

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
part = Path(sys.argv[1]) / "part"
digest = part / "store" / "0123"
digest.mkdir(parents=True)
(digest / "weights").write_bytes(b"x")
digest.chmod(0o555)
_delete(part)
print(part.exists())
"""


def test_an_ordinary_users_half_copy_is_removed_too() -> None:
    """The store's folders and their copies are read-only."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        child = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, folder], capture_output=True, text=True, check=False
        )
    assert child.stdout == "False\n", child.stderr


def test_an_ordinary_user_can_remove_a_backup(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with State(data) as state:
        state.adapters.register(KEY, new(1))
    stored = data / "store" / new(1).digest.removeprefix("sha256:")
    stored.mkdir(parents=True)
    (stored / "weights").write_bytes(b"x")
    stored.chmod(0o555)
    back_up(data, copy, pepper=False)
    folders = [copy, *(path for path in copy.rglob("*") if path.is_dir())]
    assert copy / "store" / stored.name in folders
    assert {folder.stat().st_mode & 0o777 for folder in folders} <= {0o700, 0o755}
    assert stored.stat().st_mode & 0o777 == 0o555


def test_deleting_does_not_follow_links(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir(mode=0o500)
    part = tmp_path / "part"
    part.mkdir()
    (part / "inside").symlink_to(others)
    backup._delete(part)
    link = tmp_path / "link"
    link.symlink_to(others)
    backup._delete(link)
    assert not part.exists()
    assert others.stat().st_mode & 0o777 == 0o500


KILLED = """
import os, signal, sys
from pathlib import Path
from runtime.cli.local import backup

def last(*_):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(backup, sys.argv[1], last)
getattr(backup, sys.argv[2])(Path(sys.argv[3]), Path(sys.argv[4]), *([False] if sys.argv[2] == "back_up" else []))
"""


def killed(*arguments: str) -> None:
    child = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert child.returncode == -signal.SIGKILL


def test_leftovers_of_a_killed_backup_are_removed_by_the_next(tmp_path: Path) -> None:
    data, copies = tmp_path / "data", tmp_path / "copies"
    with State(data):
        pass
    killed("_check_complete", "back_up", str(data), str(copies / "monday"))
    [half] = copies.iterdir()
    running, held = backup._part(copies)  # a running backup, whose files must stay
    assert not half.exists()
    back_up(data, copies / "tuesday", pepper=False)
    assert sorted(copies.iterdir()) == sorted([running, copies / "tuesday"])
    os.close(held)
    back_up(data, copies / "wednesday", pepper=False)
    assert sorted(one.name for one in copies.iterdir()) == ["tuesday", "wednesday"]


def test_after_a_killed_restore_no_server_starts_until_it_is_repeated(tmp_path: Path) -> None:
    """A server would take it for a new directory without keys, and clear the store."""
    data, copy, again = (tmp_path / name for name in ("data", "copy", "again"))
    with State(data) as state:
        state.models.set_alias("mine", "chat")
    (data / "store" / ("0" * 64)).mkdir(parents=True)
    back_up(data, copy, pepper=False)
    killed("copy_private", "restore", str(copy), str(again))
    assert (again / "store").is_dir()
    with pytest.raises(RefusedError, match="was interrupted"), DataDir(again, "http://127.0.0.1:1"):
        pass
    restore(copy, again)
    with DataDir(again, "http://127.0.0.1:1"), State(again) as state:
        assert state.models.aliases() == {"mine": "chat"}


def test_a_backup_can_be_made_from_a_read_only_disk(tmp_path: Path) -> None:
    """Kernels make failing disks read-only. SQLite cannot write its log there."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    data.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(data)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root mounts")
    try:
        with State(data) as state:
            state.models.set_alias("mine", "chat")
        subprocess.run(["mount", "-o", "remount,ro", str(data)], check=True)
        back_up(data, copy, pepper=False)
        with State(data, read_only=True) as state:
            assert state.models.aliases() == {"mine": "chat"}
    finally:
        subprocess.run(["umount", "-l", str(data)], check=True)
    with State(copy) as state:
        assert state.models.aliases() == {"mine": "chat"}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message used to say that the backup could not be written."""
    with State(tmp_path / "data"):
        pass

    def refused(source: Path, _: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(source))

    monkeypatch.setattr(backup, "copy_database", refused)
    with pytest.raises(RefusedError, match=r"Permission denied \(.*/data/state\.db\)"):
        back_up(tmp_path / "data", tmp_path / "copy", pepper=False)


def test_an_adapter_that_a_bad_disk_has_changed_is_not_restored_as_valid(tmp_path: Path) -> None:
    """The store trusts files with its own times, which the copy used to keep."""
    data, digest = tmp_path / "data", new(1).digest
    with State(data) as state:
        state.adapters.register(KEY, new(1))
    stored = Store(data / "store").path(digest)
    stored.mkdir(parents=True)
    for name in (CONFIG, TENSORS):
        (stored / name).write_bytes(b"x")
        os.utime(stored / name, ns=(MARK, MARK))
    back_up(data, tmp_path / "copy", pepper=False)
    restore(tmp_path / "copy", tmp_path / "again")
    assert Store(data / "store").check(digest), "not read again"
    with pytest.raises(EngineFailed, match="content has changed"):
        Store(tmp_path / "again" / "store").check(digest)


def test_notes_of_adapters_are_copied(tmp_path: Path) -> None:
    """Only the check of their files, which may be gone, could write them again."""
    with State(tmp_path / "data"):
        pass
    AdapterNotes(tmp_path / "data" / "notes").write(new(1).digest, ("rank pattern",))
    back_up(tmp_path / "data", tmp_path / "copy", pepper=False)
    restore(tmp_path / "copy", tmp_path / "again")
    assert AdapterNotes(tmp_path / "again" / "notes").of(new(1).digest) == ("rank pattern",)


def test_a_backup_with_a_damaged_index_is_refused(tmp_path: Path) -> None:
    """Lookups by it would miss rows that are there, such as an adapter's name."""
    with State(tmp_path / "data") as state:
        state.adapters.register(KEY, new(1))
    (tmp_path / "data" / "store" / new(1).digest.removeprefix("sha256:")).mkdir(parents=True)
    back_up(tmp_path / "data", tmp_path / "copy", pepper=False)
    file = tmp_path / "copy" / "state.db"
    with closing(sqlite3.connect(file)) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'versions_by_digest'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    content = bytearray(file.read_bytes())
    place = content.index(new(1).digest.encode(), (page - 1) * size)
    content[place + 20] ^= 1
    file.write_bytes(content)
    with pytest.raises(RefusedError, match=r"state\.db in .* is damaged"):
        restore(tmp_path / "copy", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_backup_with_a_changed_byte_or_without_a_file_is_refused(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with State(data) as state, closing(open_tables(data)):
        state.adapters.register(KEY, new(1))
    for name, text in (("recipes/mine@1.yaml", "id: mine"), ("notes/x.json", "[]"), ("pepper", "p" * 64)):
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text(text)
    stored = Store(data / "store").path(new(1).digest)
    stored.mkdir(parents=True)
    (stored / CONFIG).write_bytes(b"{}")
    back_up(data, copy, pepper=True)
    files = [file for file in copy.rglob("*") if file.is_file()]
    assert len(files) == 8
    changes = [(file, place) for file in files for place in (1, file.stat().st_size - 1)]
    sums = copy / backup.SUMS
    changes += [(sums, place) for place in range(0, sums.stat().st_size, 37)]
    for file, place in changes:
        content = file.read_bytes()
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(RefusedError):
            restore(copy, tmp_path / "again")
        assert not list((tmp_path / "again").glob("*")), file
        file.write_bytes(content)
    for file in files:
        file.rename(tmp_path / "away")
        with pytest.raises(RefusedError):
            restore(copy, tmp_path / "again")
        (tmp_path / "away").rename(file)
    sums.write_text("".join(sums.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RefusedError, match="missing, damaged or unreadable"):
        restore(copy, tmp_path / "again")


def test_a_backup_of_a_version_without_sums_is_restored(tmp_path: Path) -> None:
    with State(tmp_path / "data"):
        pass
    back_up(tmp_path / "data", tmp_path / "copy", pepper=False)
    (tmp_path / "copy" / backup.SUMS).unlink()
    (tmp_path / "copy" / backup.MANIFEST).write_text('{"roundhouse": "0.1.0", "made": 1}\n')
    restore(tmp_path / "copy", tmp_path / "again")
    assert (tmp_path / "again" / "state.db").exists()


def test_a_copy_is_flushed_to_the_disk_before_it_counts_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, copy, again = (tmp_path / name for name in ("data", "copy", "again"))
    with State(data):
        pass
    synced: list[bool] = []
    monkeypatch.setattr(
        backup, "sync_all", lambda at: synced.append((at / backup.MANIFEST).exists() and not copy.exists())
    )
    back_up(data, copy, pepper=False)
    monkeypatch.setattr(backup, "sync_all", lambda at: synced.append((at / HALF_RESTORED).exists()))
    restore(copy, again)
    assert synced == [True, True]


@pytest.mark.parametrize("files", [False, True])
def test_texts_of_batches_and_responses_are_copied_only_on_request(tmp_path: Path, files: bool) -> None:
    data = tmp_path / "data"
    with State(data):
        pass
    database = open_tables(data)
    prepare(database)
    tables = BatchTables(
        FileTable(database), BatchTable(database), LineTable(database), RunnerTable(database, "s"),
        RateTable(database, "s"), OutboxTable(database, b"key"), WebhookTable(database, b"key"),
    )  # fmt: skip
    tables.files.create(FileRecord("file-1", "default", "swordfish.jsonl", "batch", 9, 1.0))
    batch = BatchRecord("batch_1", "default", "", "openai", "/v1/embeddings", "file-1", 2.0, 3600)
    assert tables.batches.create(batch) is not None
    assert tables.lines.add("batch_1", [NewLine(0, "swordfish", "m", 0, 9)])
    assert tables.batches.start("batch_1", 3.0)
    called = replace(batch, id="batch_2", callback="https://swordfish.example")
    assert tables.batches.create(called) is not None
    assert tables.batches.fail("batch_2", 4.0, [])
    answer = b'{"output": [{"id": "msg_1", "type": "message", "content": "swordfish"}]}'
    assert ResponseTable(database, "s", 1 << 20).put("resp_1", "default", 1, b"swordfish", answer)
    database.close()
    (data / "files" / "incoming").mkdir(parents=True)
    (data / "files" / "incoming" / "half").write_bytes(b"swordfish")
    (data / "files" / "file-1").write_bytes(b"swordfish")
    back_up(data, tmp_path / "copy", pepper=False, files=files)
    held = [path for path in (tmp_path / "copy").rglob("*") if path.is_file() and b"swordfish" in path.read_bytes()]
    names = sorted(path.name for path in held)
    assert names == (["file-1", "tenants.db"] if files else [])
    restore(tmp_path / "copy", tmp_path / "new")
    again = open_tables(tmp_path / "new")
    assert has_tables(again)
    assert (FileTable(again).get("file-1", "default") is not None) == files
    assert ([one.id for one in BatchTable(again).unfinished()] == ["batch_1"]) == files
    sent = OutboxTable(again, b"key").of("batch_2")
    assert bool(sent) == files, "without its batches, a restored server sends no callbacks"
    assert WebhookTable(again, b"key").signer("default") is not None
    assert (ResponseTable(again, "s", 1 << 20).get("default", "resp_1") is not None) == files
    assert (FolderBytes(tmp_path / "new").read("file-1", 0, 9) == b"swordfish") if files else True
    again.close()
