"""The data directory: used by one server at a time; the next start clears leftovers."""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from registry.storage.files import SERVER_ID, make_private, make_private_file
from runtime.cli.failures import RefusedError
from runtime.cli.local import processes
from runtime.cli.output import say

STATE = "state.db"
RUN_PREFIX, LOCK = "roundhouse-", "lock"
HALF_RESTORED = "restoring"
"""A file that exists while `roundhouse restore` fills the directory."""
SOCKET_PATH_LIMIT = 107
"""Longest path of a Unix socket on Linux."""


@dataclass(frozen=True, slots=True)
class Run:
    """A server that uses, or used, the directory."""

    id: str
    pid: int
    run_dir: str
    url: str

    def alive(self) -> bool:
        return processes.alive(self.pid, self.id)


def was_served(data_dir: Path) -> bool:
    """Return whether a server has been started on it."""
    return any((data_dir / name).is_file() for name in (STATE, SERVER_ID))


def make_run_dir() -> Path:
    """Create a private folder for sockets, with a path that is short enough for them."""
    import tempfile

    # platformdirs would warn if XDG_RUNTIME_DIR is not set, as in containers, and return a folder that does not exist
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()):
        if (
            parent
            and os.access(parent, os.W_OK)
            and len(parent) + len("/roundhouse-12345678/listener-12345678") < SOCKET_PATH_LIMIT
        ):
            return Path(tempfile.mkdtemp(prefix=RUN_PREFIX, dir=parent))
    raise RefusedError(
        "There is no folder for sockets: /tmp is not writable, or TMPDIR is too long. Set TMPDIR to a short path."
    )


class DataDirInUseError(RefusedError):
    pass


class DataDir:
    """Locks the directory, as a context manager. Raises RefusedError if another server has locked it.

    | on entry                     | what happens                                                 |
    |------------------------------|--------------------------------------------------------------|
    | free, no record              | locked                                                       |
    | free, a record of a dead run | its processes ended and socket folder removed; then locked   |
    | locked by a running server   | RefusedError                                                 |
    | partly filled by a restore   | RefusedError                                                 |

    Only the server's own process holds the lock; filelock releases it in forks.
    """

    def __init__(self, path: Path, url: str) -> None:
        self.path, self._url = path.absolute(), url
        self._record = self.path / "server.json"
        self._lock = FileLock(self.path / LOCK, mode=0o600)

    def __enter__(self) -> Self:
        try:
            make_private(self.path)
            self._lock.acquire(timeout=0)
        except Timeout:
            last = self._last()
            raise DataDirInUseError(self._in_use(last if last is not None and last.alive() else None)) from None
        except OSError as error:
            raise self._unusable(error) from None
        if (self.path / HALF_RESTORED).is_file():
            self._lock.release()
            raise RefusedError(f"A restore into {self.path} was interrupted. Run it again: roundhouse restore.")
        if (last := self._last()) is not None:
            self._clear(last)
        self.run_dir = make_run_dir()
        self.run = Run(processes.own_id() or "", os.getpid(), str(self.run_dir), self._url)
        try:
            make_private_file(self._record)
            self._record.write_text(json.dumps(asdict(self.run)))
        except OSError as error:  # for example, the disk is full
            _remove(self.run_dir)
            self._lock.release()
            raise self._unusable(error) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self.run.id:
            processes.sweep(self.run.id)
        _remove(self.run_dir)
        with suppress(OSError):  # as on a disk that has become read-only: the next start sees that the run has ended
            self._record.unlink(missing_ok=True)
        self._lock.release()

    def _last(self) -> Run | None:
        try:
            return Run(**json.loads(self._record.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _unusable(self, error: OSError) -> RefusedError:
        is_folder = not isinstance(error, FileExistsError)
        cause = error.strerror if is_folder else f"{error.filename} is a file, or a link to a folder that is missing"
        return RefusedError(f"The data directory {self.path} cannot be used: {cause}. See --data-dir.")

    def _in_use(self, run: Run | None) -> str:
        who = f"the server at {run.url} (process {run.pid})" if run else "another process"
        return f"The data directory {self.path} is in use by {who}. Stop it, or give this one its own --data-dir."

    def _clear(self, run: Run) -> None:
        ended = processes.sweep(run.id) if run.id else 0
        folder = Path(run.run_dir)
        if folder.name.startswith(RUN_PREFIX) and folder.is_dir() and folder.stat().st_uid == os.getuid():
            _remove(folder)
        self._record.unlink(missing_ok=True)
        say(f"The last server here was killed. Ended {ended} processes that it left, and removed its sockets.")


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
