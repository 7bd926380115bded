"""A PostgreSQL of the machine's packages as a process of the tests' own, as a user that is not root."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from models.process_control import die_with_parent
from tests.eventually import PATIENCE, eventually

FOLDERS = "/usr/lib/postgresql/*/bin"
USERS = ("postgres", "nobody")
"""As whom it runs where the tests run as root, which it refuses."""


def programs() -> Path | None:
    """The folder of its programs; None: it is not here."""
    found = sorted(Path("/").glob(FOLDERS.lstrip("/")))
    if found and (found[-1] / "initdb").exists():
        return found[-1]
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a server without any database of ours. Its clients connect by a Unix socket."""
    binaries = programs()
    assert binaries is not None
    user = next(name for name in USERS if _exists(name)) if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="roundhouse-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        data = folder / "data"
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True, capture_output=True, user=user, cwd=folder,
        )  # fmt: skip
        options = ("listen_addresses=", f"unix_socket_directories={folder}", "fsync=off", "max_connections=50")
        process = subprocess.Popen(
            [binaries / "postgres", "-D", data, *(part for option in options for part in ("-c", option))],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user, cwd=folder,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )  # fmt: skip
        try:
            ready = [binaries / "pg_isready", "-h", folder, "-U", "tests"]
            eventually(lambda: subprocess.run(ready, capture_output=True).returncode == 0, lambda: "no PostgreSQL")
            yield f"postgresql+psycopg://tests@/postgres?host={folder}"
        finally:
            process.send_signal(signal.SIGINT)  # SIGTERM would wait for clients of a test that failed
            process.wait(PATIENCE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
