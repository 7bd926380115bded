"""Keep folders and files readable by this user only, also those from older versions.

Files that root creates get the owner of the parent folder, as with SQLite, because root may run commands while the
server runs as another user that must read the result. If root may not change owners, as in a user namespace, they
stay root's.
"""

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from registry.errors import Unavailable

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
LEAST = 2**20
"""Free bytes below which a disk counts as full."""
FOLDER_MODE, FILE_MODE = 0o700, 0o600


def make_private(folder: Path) -> None:
    """Create a folder, or remove others' access unless it belongs to another user."""
    created = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    if created:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        if os.geteuid() == 0:
            owner = created[-1].absolute().parent.stat()
            for path in created:
                with suppress(OSError):
                    os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    _close(folder, FOLDER_MODE)


def make_private_file(path: Path) -> None:
    """Create a private file, as `make_private`, and close SQLite's companion files of it."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL, FILE_MODE)
    except FileExistsError:
        path.touch()  # raises if it may not be written
    else:
        give(handle, path.parent)
        os.close(handle)
    _close(path, FILE_MODE)
    for companion in path.parent.glob(f"{path.name}-*"):
        _close(companion, FILE_MODE)


def give(handle: int, folder: Path) -> None:
    """Give a file that this process has just created to the folder's owner, by handle."""
    if os.geteuid() == 0:
        owner = folder.stat()
        with suppress(OSError):
            os.fchown(handle, owner.st_uid, owner.st_gid)


def give_all(folder: Path) -> None:
    """Give everything below a folder to its owner, by handles, so that no link leads out."""
    if os.geteuid() == 0:
        owner = folder.stat()
        for _, folders, files, handle in os.fwalk(folder):
            for name in (*folders, *files):
                with suppress(OSError):
                    os.chown(name, owner.st_uid, owner.st_gid, dir_fd=handle, follow_symlinks=False)


def is_still(database: Path) -> bool:
    """Return whether a database is on a read-only disk and has no log.

    SQLite cannot create a log there, and opens the database only with `immutable`.
    """
    return bool(os.statvfs(database).f_flag & os.ST_RDONLY) and not database.with_name(f"{database.name}-wal").exists()


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_all(folder: Path) -> None:
    """Make a folder, its files and all below it survive a power failure."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir() and not path.is_symlink():
            sync_folder(path)
        elif path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def is_full(error: Exception, folder: Path) -> bool:
    """Return whether the disk is full. Rust's errors have no number, so free space is checked."""
    if isinstance(error, OSError):
        return error.errno in FULL
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free < LEAST


def delete_files(files: Iterable[Path]) -> None:
    """Delete files, so that a power failure does not bring them back. Raises Unavailable (disk_full)."""
    for file in files:
        try:
            file.unlink(missing_ok=True)
            if file.parent.is_dir():
                sync_folder(file.parent)
        except OSError as error:
            raise Unavailable(f"{file} cannot be deleted: {error.strerror or error}.", code="disk_full") from error


def unusable(error: OSError, path: Path | None = None) -> str:
    """Describe a file or folder of the server that cannot be used, with advice."""
    problem = f"{path or error.filename or 'The data directory'} cannot be read or created: {error.strerror or error}."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{problem} The user that the server runs as has to own it; run commands as that user."
    if error.errno == errno.EROFS:
        return f"{problem} Mount its disk for writing, or name another --data-dir."
    return f"{problem} Make room on its disk." if error.errno in FULL else problem


def _close(path: Path, mode: int) -> None:
    status = path.stat()
    if status.st_mode & 0o777 & ~mode and status.st_uid == os.geteuid():
        path.chmod(status.st_mode & mode)


def write_new(file: Path, data: bytes) -> None:
    """Write a file that does not exist yet, durably except for its entry in the folder. Raises OSError."""
    with open(file, "xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def write_text(file: Path, text: str) -> None:
    """Write a private file atomically and durably, and create its folder. Raises OSError."""
    file.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


SERVER_ID = "server-id"
"""A file in the data directory, which only one server uses at a time."""


def server_id(data_dir: Path) -> str:
    """Return the id of this data directory's server, which is created at first use."""
    path = data_dir / SERVER_ID
    if not path.exists() or not path.stat().st_size:  # a crash may have left an empty one
        write_text(path, secrets.token_hex(16))
    return path.read_text().strip()[:32]
