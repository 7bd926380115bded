"""The machine's installed PostgreSQL, run by the tests as a user other than root."""

import itertools
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
from urllib.parse import parse_qs, urlsplit

import psutil
import sqlalchemy as sa

from models.process_control import die_with_parent
from tests.eventually import PATIENCE, eventually

FOLDERS = "/usr/lib/postgresql/*/bin"
USERS = ("postgres", "nobody")
"""Users to run it as if the tests run as root, which PostgreSQL refuses."""
_NUMBERS = itertools.count()


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, or None if it is not installed."""
    folders = sorted(Path("/").glob(FOLDERS.lstrip("/")))
    if folders and (folders[-1] / "initdb").exists():
        return folders[-1]
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


class PostgresServer:
    """A PostgreSQL on a Unix socket. `start` starts it.

    Args:
        listen: an address on which it also accepts TCP connections from anybody.
    """

    def __init__(self, folder: Path, user: str | None, listen: str = "") -> None:
        binaries = programs()
        assert binaries is not None
        self._listen = listen
        self._binaries, self._folder, self._user = binaries, folder, user
        self._process: subprocess.Popen[bytes] | None = None
        subprocess.run(
            [binaries / "initdb", "-D", folder / "data", "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True, capture_output=True, user=user, cwd=folder,
        )  # fmt: skip
        if listen:
            with (folder / "data" / "pg_hba.conf").open("a") as file:
                file.write("host all all samenet trust\n")

    @property
    def url(self) -> str:
        """The URL of a database without any of our tables."""
        return f"postgresql+psycopg://tests@/postgres?host={self._folder}"

    def start(self) -> None:
        where = (f"listen_addresses={self._listen}", f"unix_socket_directories={self._folder}")
        # vacuuming each test's database would take longer than its tests
        options = (*where, "fsync=off", "autovacuum=off", "max_connections=50")
        self._process = subprocess.Popen(
            [
                self._binaries / "postgres", "-D", self._folder / "data",
                *(part for option in options for part in ("-c", option)),
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=self._user, cwd=self._folder,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )  # fmt: skip
        ready = [self._binaries / "pg_isready", "-h", self._folder, "-U", "tests"]
        eventually(lambda: subprocess.run(ready, capture_output=True).returncode == 0, lambda: "no PostgreSQL")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it. SIGTERM would wait for clients; SIGQUIT ends it like a crash."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill all of its processes with SIGKILL, as when the machine fails."""
        assert self._process is not None
        for process in [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children()]:
            process.kill()
        self._process.wait(PATIENCE)


@contextmanager
def postgres_server(listen: str = "") -> Iterator[PostgresServer]:
    user = next(name for name in USERS if _exists(name)) if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="roundhouse-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        server = PostgresServer(folder, user, listen)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres() -> Iterator[str]:
    """Start a server; yields its URL."""
    with postgres_server() as server:
        yield server.url


def create_database(server: str, model: str = "template1") -> str:
    """Copy a database, by default an empty one; returns the copy's URL."""
    name = f"tests_{next(_NUMBERS)}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name} TEMPLATE {model}"))
    engine.dispose()
    return sa.make_url(server).set(database=name).render_as_string(hide_password=False)


@contextmanager
def standing_still(url: str) -> Iterator[None]:
    """Suspend its processes, as on a disk that hangs. The kernel still accepts connections."""
    (folder,) = parse_qs(urlsplit(url).query)["host"]
    main = psutil.Process(int(Path(folder, "data", "postmaster.pid").read_text().split()[0]))
    processes = [main, *main.children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
