"""Copy everything that cannot be recreated, while the server may be running.

| part                     | how                                                                             |
|--------------------------|---------------------------------------------------------------------------------|
| `state.db`, `tenants.db` | SQLite's online backup, which is consistent during writes. With PostgreSQL, this |
|                          | server's state there is copied to a `state.db`                                  |
| `store/`, `routers/`     | immutable, by digest. Copied before and after the databases, so that everything |
|                          | they refer to is present                                                        |
| `merged/`                | whole folders, immutable                                                        |
| `files/`                 | with `files`, like `store/`. Otherwise the copied database has no files, batches |
|                          | and stored responses, because all contain people's texts                        |
| `recipes/`, `pepper`,    | files. A recipe of a merged model names it by a relative path, so that it is    |
| `providers/`, `notes/`   | found wherever the copy is restored                                             |

Everything else can be recreated (`converted/`), belongs to one run (`incoming/`, `lock`, `server.json`) or to one
server (`server-id`, `elsewhere`, `ledger.journal`), or is downloaded again.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from registry.state.database import REMOTE_MARK, copy, is_remote, look, open_file
from registry.storage.files import give_all, is_still, make_private, make_private_file, sync_all, sync_folder
from runtime.cli.failures import RefusedError, refusals
from runtime.cli.local.data_dir import HALF_RESTORED, LOCK, STATE, was_served

DATABASES = (STATE, "tenants.db")
BY_DIGEST = ("store", "routers")
MERGED, RECIPES = "merged", "recipes"
FOLDERS = (*BY_DIGEST, MERGED, RECIPES, "providers", "notes")
FILES = "files"
UNFINISHED = {**dict.fromkeys(BY_DIGEST, "tmp-"), FILES: "incoming"}
"""Beginning of the names of unfinished parts. Others are hidden."""
_TEXTS = ("lines", "batches", "outbox", "pieces", "files", "response_items", "responses")
"""Tables that contain texts of requests and answers, or depend on them."""
PEPPER, MANIFEST, SUMS = "pepper", "backup.json", "SHA256SUMS"
PART = ".roundhouse-backup-"


def back_up(data_dir: Path, target: Path, pepper: bool, url: str | None = None, *, files: bool = False) -> int:
    """Create the folder `target`, completely or not at all. Returns its bytes.

    files: include files, batches and stored responses.

    Raises RefusedError.
    """
    if not was_served(data_dir):
        raise RefusedError(f"No server has used the data directory {data_dir}. See --data-dir.")
    if url is None and ((data_dir / REMOTE_MARK).is_file() or not (data_dir / STATE).is_file()):
        raise RefusedError(
            f"The server of {data_dir} had its state in PostgreSQL. Name that with ROUNDHOUSE_DATABASE or --database. "
            "If it is no longer used, start the server once without it, and its `state.db` is used again."
        )
    _free(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part, lock = _part(target.parent)
        copy_ = part / target.name
        copy_.mkdir(mode=0o700)
    except OSError as error:
        raise RefusedError(f"{target} cannot be created: {error.strerror}.") from None
    try:
        _copy(data_dir, copy_, url, pepper=pepper, files=files)
        size = sum(file.stat().st_size for file in copy_.rglob("*") if file.is_file())
        if target.exists():
            target.rmdir()
        sync_all(copy_)
        copy_.rename(target)
        sync_folder(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise RefusedError(
            f"The backup could not be written to {target}: {_why(error)}. Nothing is left of it."
        ) from None
    finally:
        _delete(part)
        os.close(lock)
    return size


def _copy(data_dir: Path, target: Path, url: str | None, *, pepper: bool, files: bool) -> None:
    """Copy a data directory to a new folder. Raises RefusedError, OSError, sqlite3.Error."""
    folders = (*FOLDERS, FILES) if files else FOLDERS
    _copy_folders(data_dir, target, folders)
    for name in DATABASES:
        copy_database(data_dir / name, target / name)
    if not files:
        _remove_texts(target / DATABASES[1])
    if is_remote(url):
        _copy_state(data_dir, target / DATABASES[0], url)
    _copy_folders(data_dir, target, folders)
    _make_merged_paths_relative(target / RECIPES, data_dir / MERGED)
    if pepper:
        copy_private(data_dir / PEPPER, target / PEPPER)
    _check_complete(target)
    names = [MANIFEST, *sorted(str(file.relative_to(target)) for file in target.rglob("*") if file.is_file())]
    manifest = {"roundhouse": version("roundhouse"), "made": int(time.time()), "files": len(names)}
    (target / MANIFEST).write_text(json.dumps(manifest) + "\n")
    sums = "".join(f"{_sha256(target / name)}  {name}\n" for name in names)
    (target / SUMS).write_text(sums, errors="surrogateescape")


def _part(folder: Path) -> tuple[Path, int]:
    """Create a folder to write into, locked by the returned handle. Deletes unlocked ones, which were abandoned."""
    for leftover in folder.glob(f"{PART}*"):
        with contextlib.suppress(OSError):  # locked, another user's, or locks are not supported
            handle = _lock(leftover)
            _delete(leftover)
            os.close(handle)
    part = Path(tempfile.mkdtemp(prefix=PART, dir=folder))
    with contextlib.suppress(OSError):  # a share without locks on folders
        return part, _lock(part)
    return part, os.open(part, os.O_RDONLY)


def _lock(folder: Path) -> int:
    """Lock a folder and return its handle. Raises OSError if it is already locked."""
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
        raise RefusedError(f"{source} is not a backup, because it has no {MANIFEST}. See roundhouse backup --help.")
    _check_complete(source)
    sums = _read_sums(source)
    half = data_dir / HALF_RESTORED
    if not half.is_file():
        _free(data_dir)
    make_private(data_dir)
    try:
        with FileLock(data_dir / LOCK, timeout=0, mode=0o600):  # keeps servers and other restores out
            if half.is_file():
                _empty(data_dir)
            _free(data_dir, besides=LOCK)
            make_private_file(half)
            _fill(data_dir, source, sums)
            sync_all(data_dir)
            half.unlink()
    except Timeout:
        raise RefusedError(f"{data_dir} is in use by a server or by another restore.") from None
    except OSError as error:
        raise RefusedError(f"{data_dir} could not be filled: {_why(error)}. Nothing is left in it.") from None


def _read_sums(source: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a backup; empty for a backup of an earlier version. Raises RefusedError.

    The manifest is one of the files. A change of any byte of it, or of the sums, is an error as well.
    """
    sums = source / SUMS
    try:
        manifest = (source / MANIFEST).read_bytes()
        if not sums.is_file() and b'"files"' not in manifest:
            return {}
        lines = sums.read_text(errors="surrogateescape").split("\n")
        result = {name: digest for digest, name in (line.split("  ", 1) for line in lines if line)}
        _check_sums({MANIFEST: result.get(MANIFEST, "")}, source, source)
        is_whole = len(result) == json.loads(manifest)["files"]
    except (OSError, ValueError):
        is_whole = False
    if not is_whole:
        raise RefusedError(f"{source / MANIFEST} or {sums} is missing, damaged or unreadable. Restore another backup.")
    return {name: digest for name, digest in result.items() if name != MANIFEST}


def _check_sums(sums: Mapping[str, str], folder: Path, source: Path) -> None:
    """Raise RefusedError for files of a folder that differ from those that were backed up to `source`."""
    paths = {name: folder / name for name in sums}
    changed = [name for name, path in paths.items() if not path.is_file() or _sha256(path) != sums[name]]
    if changed:
        raise RefusedError(
            f"The backup {source} has missing or changed files ({len(changed)}). Restore another one.",
            faults=changed[:10],
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fill(data_dir: Path, source: Path, sums: Mapping[str, str]) -> None:
    """Copy a backup completely and check the copy; remove everything again after an error."""
    try:
        _copy_folders(source, data_dir, (*FOLDERS, FILES))
        for name in (*DATABASES, PEPPER):
            copy_private(source / name, data_dir / name)
        give_all(data_dir)
        _check_sums(sums, data_dir, source)
        _check_complete(data_dir)
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
    """Describe the cause of an error, with its file if there is one."""
    why, file = getattr(error, "strerror", None) or str(error), getattr(error, "filename", None)
    return why if file is None else f"{why} ({file})"


def _free(folder: Path, besides: str = "") -> None:
    if folder.exists() and (not folder.is_dir() or any(one.name != besides for one in folder.iterdir())):
        raise RefusedError(f"{folder} is not empty, and nothing is overwritten. Name a new folder.")


def copy_database(source: Path, target: Path) -> None:
    """Copy a database into a missing or empty file, which readers see either empty or complete."""
    if not source.is_file():
        return
    make_private_file(target)
    still = "&immutable=1" if is_still(source) else ""
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro{still}", uri=True, timeout=30)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file without a separate log


def _remove_texts(database: Path) -> None:
    """Remove files, batches and stored responses from a copied database, including its free pages."""
    if not database.is_file():
        return
    with closing(sqlite3.connect(database)) as copy:
        existing = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not existing.intersection(_TEXTS):
            return
        with copy:
            for name in existing.intersection(_TEXTS):  # a database of an earlier version has fewer
                copy.execute(f"DELETE FROM {name}")
        copy.execute("VACUUM")


def _copy_state(data_dir: Path, target: Path, url: str | None) -> None:
    """Copy the state from PostgreSQL to an SQLite file. Raises RefusedError."""
    target.unlink(missing_ok=True)  # from before the server used PostgreSQL
    with refusals(), closing(look(data_dir, url)) as live, closing(open_file(target)) as made:
        copy(live, made)


def _copy_folders(source: Path, target: Path, folders: Sequence[str]) -> None:
    """Copy folders with new timestamps, so that the store verifies the adapters before it trusts them."""
    for name in folders:
        if not (source / name).is_dir():
            continue
        (target / name).mkdir(exist_ok=True)
        for one in sorted((source / name).iterdir()):
            to = target / name / one.name
            if one.name.startswith((".", UNFINISHED.get(name, "."))) or to.exists():
                continue  # unfinished, or already copied
            try:
                if one.is_dir():
                    shutil.copytree(one, to, copy_function=shutil.copy)
                    _make_writable(to)  # folders of the store are not, and `rm -r` of a backup would fail
                else:
                    shutil.copy2(one, to)
            except (FileNotFoundError, shutil.Error) as error:
                if one.exists():
                    why = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror
                    raise RefusedError(f"{one} could not be copied: {why}. Nothing is left of the copy.") from None
                _delete(to)  # removed in the meantime; `_check_complete` finds out whether it is needed


def _make_merged_paths_relative(recipes: Path, merged: Path) -> None:
    for file in recipes.glob("*.yaml"):
        # suppressed for recipes with other sources, and broken ones
        with contextlib.suppress(yaml.YAMLError, ValueError, TypeError, LookupError, ArithmeticError):
            recipe = yaml.safe_load(file.read_text(encoding="utf-8"))
            named = Path(recipe["source"]["path"])
            if named.parent.resolve() == merged.resolve():
                recipe["source"]["path"] = f"../{MERGED}/{named.name}"
                file.write_text(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _delete(folder: Path) -> None:
    """Delete a folder with read-only folders in it, without following links."""
    with contextlib.suppress(OSError):
        _make_writable(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _make_writable(folder: Path) -> None:
    """Let the owner change all folders below a folder, without following links. Raises OSError."""
    for *_, handle in os.fwalk(folder):
        os.fchmod(handle, 0o700)


def copy_private(source: Path, target: Path) -> None:
    if source.is_file():
        make_private_file(target)
        target.write_bytes(source.read_bytes())


def _check_complete(folder: Path) -> None:
    """Raise RefusedError for a damaged database, or a missing adapter or router."""
    named: set[str] = set()
    for name in DATABASES:
        if not (folder / name).is_file():
            continue
        with closing(sqlite3.connect(folder / name)) as database:
            try:
                (result,) = database.execute("PRAGMA integrity_check").fetchone()
            except sqlite3.DatabaseError as error:
                result = str(error)
            if result != "ok":
                raise RefusedError(f"{name} in {folder} is damaged: {result}")
            if name == DATABASES[0]:
                named = {digest for (digest,) in database.execute("SELECT DISTINCT digest FROM versions")}
    stored = {one[-64:] for name in BY_DIGEST if (folder / name).is_dir() for one in os.listdir(folder / name)}
    missing = sorted(digest for digest in named if digest[-64:] not in stored)
    if missing:
        raise RefusedError(f"{len(missing)} adapters or routers are missing. Try again.", faults=missing[:10])
