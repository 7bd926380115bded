"""A PostgreSQL of the machine's packages as a process of the tests' own, as a user that is not root."""

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
"""As whom it runs where the tests run as root, which it refuses."""
_NUMBERS = itertools.count()


def programs() -> Path | None:
    """The folder of its programs; None: it is not here."""
    found = sorted(Path("/").glob(FOLDERS.lstrip("/")))
    if found and (found[-1] / "initdb").exists():
        return found[-1]
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


class PostgresServer:
    """Its clients connect by a Unix socket. Started by `start`. listen: an address for TCP beside it, for anybody."""

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
        """The address of a database without any tables of ours."""
        return f"postgresql+psycopg://tests@/postgres?host={self._folder}"

    def start(self) -> None:
        where = (f"listen_addresses={self._listen}", f"unix_socket_directories={self._folder}")
        # a vacuum of each test's database takes longer than its tests
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
        """SIGTERM would wait for clients; SIGQUIT ends it as a crash does."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(PATIENCE)

    def kill(self) -> None:
        """kill -9 of it and of all its processes, as a machine's end is."""
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
    """The URL of a server."""
    with postgres_server() as server:
        yield server.url


def create_database(server: str, model: str = "template1") -> str:
    """Make a copy of a database, an empty one by default; returns its URL."""
    name = f"tests_{next(_NUMBERS)}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name} TEMPLATE {model}"))
    engine.dispose()
    return sa.make_url(server).set(database=name).render_as_string(hide_password=False)


@contextmanager
def standing_still(url: str) -> Iterator[None]:
    """Its processes do nothing, as on a disk that hangs; the kernel still takes connections."""
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
