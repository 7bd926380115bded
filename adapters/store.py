"""The content-addressed store: one immutable folder per digest, written atomically.

    root/<64 hex digits>/   adapter_config.json, adapter_model.safetensors; read-only
    root/tmp-…/             being written or deleted; removed at start

Files have a fixed modification time (`MARK`). Any later write changes it, so a stat proves that nothing has changed. If
it changed for another reason (a copied disk), the content is hashed before it is trusted.
"""

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from adapters.content.digest import digest_of
from adapters.content.forms import CONFIG, TENSORS
from registry.base.json import NOT_JSON
from registry.errors import EngineFailed
from registry.storage.files import sync_folder

MARK = 1_000_000_000 * 10**9
"""Modification time of stored files, in nanoseconds since the epoch."""
_BLOCK = 4 << 20


class Store:
    """Safe for several threads and processes. All methods block on the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def start(self) -> int:
        """Create the root, and delete unfinished folders. Returns how many there were."""
        self.root.mkdir(parents=True, exist_ok=True)
        unfinished = list(self.root.glob("tmp-*"))
        for folder in unfinished:
            _delete(folder)
        return len(unfinished)

    def path(self, digest: str) -> Path:
        """Return the folder of a digest, which need not exist."""
        return self.root / digest.removeprefix("sha256:")

    def digests(self) -> list[str]:
        return [f"sha256:{path.name}" for path in self.root.iterdir() if len(path.name) == 64]

    @contextlib.contextmanager
    def writing(self) -> Iterator[Path]:
        """Provide an empty folder for an adapter, which is deleted unless `commit` moved it."""
        folder = Path(tempfile.mkdtemp(prefix="tmp-", dir=self.root))
        try:
            yield folder
        finally:
            _delete(folder)

    def commit(self, folder: Path, digest: str) -> Path:
        """Move a folder written (and synced) by `normalise` to its digest's path, and return that.

        If the digest already exists, its folder is kept if intact and replaced if damaged.
        Raises EngineFailed (code adapter_damaged) if it is there and damaged each time.
        """
        for name in (CONFIG, TENSORS):
            os.utime(folder / name, ns=(MARK, MARK))
            os.chmod(folder / name, 0o444)
        os.chmod(folder, 0o555)
        target = self.path(digest)
        for _ in range(8):  # another writer or a collection may interfere between any two steps
            try:
                os.rename(folder, target)
                break
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
            if self._is_sound(digest):
                return target
            self.remove(digest)
        else:
            raise _damaged(digest, "another process writes and damages them again and again")
        sync_folder(self.root)
        return target

    def check(self, digest: str) -> Path:
        """Check the files cheaply, with two stat calls if nothing has changed.

        Raises EngineFailed (code adapter_damaged).
        """
        path = self.path(digest)
        if all(_is_marked(path / name) for name in (CONFIG, TENSORS)):
            return path
        return self.verify(digest)

    def verify(self, digest: str) -> Path:
        """Read and hash both files. Raises EngineFailed (code adapter_damaged)."""
        path = self.path(digest)
        try:
            actual = digest_of((path / CONFIG).read_bytes(), _parts(path / TENSORS))
        except OSError as error:
            raise _damaged(digest, f"{error.strerror} ({Path(str(error.filename)).name})") from None
        if actual != digest:
            raise _damaged(digest, "their content has changed")
        with contextlib.suppress(OSError):  # on a read-only copy of the store check() hashes each time
            for name in (CONFIG, TENSORS):
                os.utime(path / name, ns=(MARK, MARK))
        return path

    def remove(self, digest: str) -> None:
        """Delete a digest atomically. Does nothing if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            self._set_aside(self.path(digest))

    def _is_sound(self, digest: str) -> bool:
        try:
            self.verify(digest)
        except EngineFailed:
            return False
        return True

    def _set_aside(self, path: Path) -> None:
        """Move a folder over an empty one, and delete it.

        Only root may move a read-only folder into another folder.
        """
        aside = Path(tempfile.mkdtemp(prefix="tmp-", dir=self.root))
        try:
            os.rename(path, aside)
        finally:
            _delete(aside)


def _delete(folder: Path) -> None:
    """Delete a folder that may be read-only. If that fails, the next start deletes it."""
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o755)
    shutil.rmtree(folder, ignore_errors=True)


def _is_marked(path: Path) -> bool:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_mtime_ns == MARK and status.st_size > 0


def _parts(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while part := file.read(_BLOCK):
            yield part


def _damaged(digest: str, why: str) -> EngineFailed:
    return EngineFailed(
        f"The stored files of adapter {digest[:19]}… cannot be used: {why}. "
        "Register the adapter again from its source; the same content gets the same digest, so names and aliases stay.",
        code="adapter_damaged",
    )


class AdapterNotes:
    """Notes, in one small file for each digest that has any. All methods block."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._known: dict[str, tuple[str, ...]] = {}

    def of(self, digest: str) -> tuple[str, ...]:
        if digest not in self._known:
            try:
                self._known[digest] = msgspec.json.decode(self._file(digest).read_bytes(), type=tuple[str, ...])
            except (OSError, *NOT_JSON):
                self._known[digest] = ()
        return self._known[digest]

    def write(self, digest: str, notes: tuple[str, ...]) -> None:
        self._known[digest] = notes
        with contextlib.suppress(OSError):  # an adapter is registered even if its notes cannot be stored
            if notes:
                self._root.mkdir(exist_ok=True)
                self._file(digest).write_bytes(msgspec.json.encode(notes))
            else:
                self._file(digest).unlink(missing_ok=True)

    def remove(self, digest: str) -> None:
        self._known.pop(digest, None)
        with contextlib.suppress(OSError):
            self._file(digest).unlink(missing_ok=True)

    def _file(self, digest: str) -> Path:
        return self._root / f"{digest.removeprefix('sha256:')}.json"
