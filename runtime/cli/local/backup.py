"""Copy everything that cannot be made again, beside a running server.

| part                     | how                                                                             |
|--------------------------|---------------------------------------------------------------------------------|
| `state.db`, `tenants.db` | SQLite's online backup: one state of the file, while others write it; of a        |
|                          | PostgreSQL, what this server's state there holds, as a `state.db`                  |
| `store/`, `routers/`     | by digest, never changed; copied before and after the databases, so that what   |
|                          | they name is there                                                              |
| `merged/`                | whole folders, never changed                                                    |
| `files/`                 | with `files`: as `store/`; else the copied database has no files and no batches, |
|                          | since people's texts are in both                                                |
| `recipes/`, `pepper`     | files; a recipe of a merged model names it from its own folder, so that it is   |
|                          | found wherever the copy is restored                                             |

What is left out is made again (`converted/`), belongs to one run (`incoming/`, `lock`, `server.json`) or to one server
(`server-id`, `elsewhere`, `ledger.journal`), or is fetched.
"""

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from registry.errors import RoundhouseError
from registry.state.database import REMOTE_MARK, copy, is_remote, look, open_file
from registry.storage.files import give_all, is_still, make_private, make_private_file, sync_all, sync_folder
from runtime.cli.failures import RefusedError
from runtime.cli.local.data_dir import HALF_RESTORED, LOCK, STATE, was_served

DATABASES = (STATE, "tenants.db")
BY_DIGEST = ("store", "routers")
MERGED, RECIPES = "merged", "recipes"
FOLDERS = (*BY_DIGEST, MERGED, RECIPES, "providers")
FILES = "files"
_TEXTS = ("lines", "batches", "outbox", "pieces", "files")
"""Tables of `batches` in which texts of requests and answers are, or what makes no sense without them."""
PEPPER, MANIFEST = "pepper", "backup.json"
PART = ".roundhouse-backup-"


def back_up(data_dir: Path, target: Path, pepper: bool, url: str | None = None, *, files: bool = False) -> int:
    """Make the folder `target`, whole or not at all. files: with files and batches. Returns bytes; RefusedError."""
    folders = (*FOLDERS, FILES) if files else FOLDERS
    if not was_served(data_dir):
        raise RefusedError(f"No server has used the data directory {data_dir}. See --data-dir.")
    if url is None and ((data_dir / REMOTE_MARK).is_file() or not (data_dir / STATE).is_file()):
        raise RefusedError(
            f"A server kept what {data_dir} has no file for in PostgreSQL. Name it: ROUNDHOUSE_DATABASE or --database. "
            "If that is over, start the server once without it: then its `state.db` counts again."
        )
    _free(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part, held = _part(target.parent)
        made = part / target.name
        made.mkdir(mode=0o700)
    except OSError as error:
        raise RefusedError(f"{target} cannot be made: {error.strerror}.") from None
    try:
        _copy_folders(data_dir, made, folders)
        for name in DATABASES:
            copy_database(data_dir / name, made / name)
        if not files:
            _remove_texts(made / DATABASES[1])
        if is_remote(url):
            _copy_state(data_dir, made / DATABASES[0], url)
        _copy_folders(data_dir, made, folders)
        _name_merged_from_here(made / RECIPES, data_dir / MERGED)
        if pepper:
            copy_private(data_dir / PEPPER, made / PEPPER)
        _whole(made)
        (made / MANIFEST).write_text(json.dumps({"roundhouse": version("roundhouse"), "made": int(time.time())}) + "\n")
        size = sum(file.stat().st_size for file in made.rglob("*") if file.is_file())
        if target.exists():
            target.rmdir()
        sync_all(made)
        made.rename(target)
        sync_folder(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise RefusedError(
            f"The backup could not be written to {target}: {_why(error)}. Nothing is left of it."
        ) from None
    finally:
        _delete(part)
        os.close(held)
    return size


def _part(folder: Path) -> tuple[Path, int]:
    """A folder to write into, locked by a handle. Unlocked ones were abandoned."""
    for left in folder.glob(f"{PART}*"):
        with contextlib.suppress(OSError):  # held, another user's, or where nothing can be locked
            handle = _hold(left)
            _delete(left)
            os.close(handle)
    part = Path(tempfile.mkdtemp(prefix=PART, dir=folder))
    with contextlib.suppress(OSError):  # a share that locks no folders
        return part, _hold(part)
    return part, os.open(part, os.O_RDONLY)


def _hold(folder: Path) -> int:
    """Raises OSError, where another one holds it too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def restore(source: Path, data_dir: Path) -> None:
    """Fill an empty or missing data directory from a backup. Raises RefusedError."""
    if not (source / MANIFEST).is_file():
        raise RefusedError(f"{source} is not a backup: it has no {MANIFEST}. See roundhouse backup --help.")
    _whole(source)
    half = data_dir / HALF_RESTORED
    if not half.is_file():
        _free(data_dir)
    make_private(data_dir)
    try:
        with FileLock(data_dir / LOCK, timeout=0, mode=0o600):  # no server and no other copy begins on it meanwhile
            if half.is_file():
                _empty(data_dir)
            _free(data_dir, besides=LOCK)
            make_private_file(half)
            _fill(data_dir, source)
            sync_all(data_dir)
            half.unlink()
    except Timeout:
        raise RefusedError(f"A server uses {data_dir}, or another copy fills it.") from None
    except OSError as error:
        raise RefusedError(f"{data_dir} could not be filled: {_why(error)}. Nothing is left in it.") from None


def _fill(data_dir: Path, source: Path) -> None:
    """Copy a backup as a whole; after an error everything copied is removed again."""
    try:
        _copy_folders(source, data_dir, (*FOLDERS, FILES))
        for name in (*DATABASES, PEPPER):
            copy_private(source / name, data_dir / name)
        give_all(data_dir)
        _whole(data_dir)
    except BaseException:
        _empty(data_dir)
        (data_dir / LOCK).unlink(missing_ok=True)
        raise


def _empty(data_dir: Path) -> None:
    """Remove everything that comes from a backup."""
    for name in (*FOLDERS, FILES):
        _delete(data_dir / name)
    for name in (*DATABASES, PEPPER, HALF_RESTORED):
        (data_dir / name).unlink(missing_ok=True)


def _why(error: Exception) -> str:
    """The cause of an error in words, with its file if there is one."""
    why, file = getattr(error, "strerror", None) or str(error), getattr(error, "filename", None)
    return why if file is None else f"{why} ({file})"


def _free(folder: Path, besides: str = "") -> None:
    if folder.exists() and (not folder.is_dir() or any(one.name != besides for one in folder.iterdir())):
        raise RefusedError(f"{folder} is not empty: nothing is written over what is there. Name a new folder.")


def copy_database(source: Path, target: Path) -> None:
    """Copy into a missing or empty file, which readers see empty or whole."""
    if not source.is_file():
        return
    make_private_file(target)
    still = "&immutable=1" if is_still(source) else ""
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro{still}", uri=True, timeout=30)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it


def _remove_texts(database: Path) -> None:
    """Leave files and batches out of a copied database, and nothing of them in its free pages."""
    if not database.is_file():
        return
    with closing(sqlite3.connect(database)) as copy:
        there = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not there.intersection(_TEXTS):
            return
        with copy:
            for name in there.intersection(_TEXTS):  # an earlier version's database has fewer
                copy.execute(f"DELETE FROM {name}")
        copy.execute("VACUUM")


def _copy_state(data_dir: Path, target: Path, url: str | None) -> None:
    """Copy from PostgreSQL to a file for any database. Raises RefusedError."""
    target.unlink(missing_ok=True)  # of the time before that server had a PostgreSQL
    try:
        with closing(look(data_dir, url)) as live, closing(open_file(target)) as made:
            copy(live, made)
    except RoundhouseError as error:
        raise RefusedError(error.message, code=error.code) from None


def _copy_folders(source: Path, target: Path, folders: Sequence[str]) -> None:
    """Copy with new times: the store reads such an adapter before it trusts it."""
    for name in folders:
        if not (source / name).is_dir():
            continue
        (target / name).mkdir(exist_ok=True)
        for one in sorted((source / name).iterdir()):
            there = target / name / one.name
            if one.name.startswith(("tmp-", ".", "incoming")) or there.exists():
                continue  # half written; or the second time
            try:
                if one.is_dir():
                    shutil.copytree(one, there, copy_function=shutil.copy)
                else:
                    shutil.copy2(one, there)
            except (FileNotFoundError, shutil.Error) as error:
                if one.exists():
                    why = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror
                    raise RefusedError(f"{one} could not be copied: {why}. Nothing is left of the copy.") from None
                _delete(there)  # removed meanwhile: `_whole` tells whether it is missed


def _name_merged_from_here(recipes: Path, merged: Path) -> None:
    for file in recipes.glob("*.yaml"):
        # suppressed: of another source, or broken as it is there
        with contextlib.suppress(yaml.YAMLError, ValueError, TypeError, LookupError, ArithmeticError):
            recipe = yaml.safe_load(file.read_text(encoding="utf-8"))
            named = Path(recipe["source"]["path"])
            if named.parent.resolve() == merged.resolve():
                recipe["source"]["path"] = f"../{MERGED}/{named.name}"
                file.write_text(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _delete(folder: Path) -> None:
    """Delete a folder, read-only files too. No link is followed."""
    with contextlib.suppress(OSError):
        for *_, handle in os.fwalk(folder):
            os.fchmod(handle, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def copy_private(source: Path, target: Path) -> None:
    if source.is_file():
        make_private_file(target)
        target.write_bytes(source.read_bytes())


def _whole(folder: Path) -> None:
    """Raises RefusedError for a damaged database, or a missing adapter or router."""
    named: set[str] = set()
    for name in DATABASES:
        if not (folder / name).is_file():
            continue
        with closing(sqlite3.connect(folder / name)) as database:
            try:
                (result,) = database.execute("PRAGMA quick_check").fetchone()
            except sqlite3.DatabaseError as error:
                result = str(error)
            if result != "ok":
                raise RefusedError(f"{name} in {folder} is damaged: {result}")
            if name == DATABASES[0]:
                named = {digest for (digest,) in database.execute("SELECT DISTINCT digest FROM versions")}
    stored = {one[-64:] for name in BY_DIGEST if (folder / name).is_dir() for one in os.listdir(folder / name)}
    missing = sorted(digest for digest in named if digest[-64:] not in stored)
    if missing:
        raise RefusedError(
            f"{len(missing)} adapters or routers are named and not there. Try again.", faults=missing[:10]
        )
