"""The SQLite file: how it is opened, its tables, and the migrations that bring an older file to them."""

import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from registry.errors import Conflict, NotFound, Unavailable
from registry.state.files import make_private, make_private_file

FILE = "state.db"

# One entry per version of the file. An entry is never changed after a release: append the next one.
MIGRATIONS: Sequence[str] = (
    """
    CREATE TABLE digests (digest TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT;
    -- The last number of each name outlives the adapter: name@v3 must never come to mean other content.
    CREATE TABLE numbers (
        base TEXT NOT NULL, name TEXT NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (base, name)
    ) STRICT;
    CREATE TABLE adapters (
        id INTEGER PRIMARY KEY, base TEXT NOT NULL, name TEXT NOT NULL, created REAL NOT NULL,
        pinned INTEGER NOT NULL DEFAULT 0, UNIQUE (base, name)
    ) STRICT;
    CREATE TABLE versions (
        adapter INTEGER NOT NULL REFERENCES adapters (id) ON DELETE CASCADE, number INTEGER NOT NULL,
        digest TEXT NOT NULL REFERENCES digests (digest), created REAL NOT NULL, rank INTEGER NOT NULL,
        bytes INTEGER NOT NULL, source TEXT NOT NULL, prompt TEXT, expected TEXT, PRIMARY KEY (adapter, number)
    ) STRICT;
    CREATE INDEX versions_by_digest ON versions (digest);
    -- A stack per adapter: the top is the current version, rollback takes it off.
    CREATE TABLE currents (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, adapter INTEGER NOT NULL, number INTEGER NOT NULL,
        FOREIGN KEY (adapter, number) REFERENCES versions (adapter, number) ON DELETE CASCADE
    ) STRICT;
    CREATE INDEX currents_by_adapter ON currents (adapter, seq);
    CREATE TABLE aliases (
        adapter INTEGER NOT NULL, alias TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (adapter, alias),
        FOREIGN KEY (adapter, number) REFERENCES versions (adapter, number) ON DELETE CASCADE
    ) STRICT;
    CREATE TABLE changes (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, base TEXT NOT NULL, name TEXT NOT NULL,
        event TEXT NOT NULL, detail TEXT NOT NULL
    ) STRICT;
    CREATE INDEX changes_by_adapter ON changes (base, name, seq);
    CREATE TABLE model_pins (model TEXT PRIMARY KEY, pinned INTEGER NOT NULL) STRICT;
    CREATE TABLE model_aliases (alias TEXT PRIMARY KEY, model TEXT NOT NULL) STRICT;
    CREATE TABLE loads (
        model TEXT NOT NULL, recipe_version INTEGER NOT NULL, engine_version TEXT NOT NULL, device TEXT NOT NULL,
        resident INTEGER NOT NULL, peak INTEGER NOT NULL, seconds TEXT NOT NULL, count INTEGER NOT NULL,
        updated REAL NOT NULL, PRIMARY KEY (model, recipe_version, engine_version, device)
    ) STRICT;
    """,
    """
    -- Bytes in host memory beside the device, after the last load; none where loads were measured before.
    ALTER TABLE loads ADD COLUMN host INTEGER;
    CREATE TABLE sleeps (
        model TEXT NOT NULL, recipe_version INTEGER NOT NULL, engine_version TEXT NOT NULL, device TEXT NOT NULL,
        bytes INTEGER NOT NULL, host INTEGER NOT NULL, seconds TEXT NOT NULL, count INTEGER NOT NULL,
        updated REAL NOT NULL, PRIMARY KEY (model, recipe_version, engine_version, device)
    ) STRICT;
    """,
    "DROP TABLE changes;",
    """
    -- Until now a peak was kept, however it came about, and on CPUs in both columns: nothing of that can be trusted.
    ALTER TABLE loads DROP COLUMN peak;
    ALTER TABLE loads ADD COLUMN margin INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE loads ADD COLUMN margin_seen REAL NOT NULL DEFAULT 0;
    DELETE FROM loads WHERE device = 'cpu';
    """,
    """
    -- Adapters have an owner. What was there before was everybody's, and stays so.
    CREATE TABLE owned_numbers (
        base TEXT NOT NULL, name TEXT NOT NULL, team TEXT NOT NULL, last INTEGER NOT NULL,
        PRIMARY KEY (base, name, team)
    ) STRICT;
    INSERT INTO owned_numbers SELECT base, name, 'default', last FROM numbers;
    DROP TABLE numbers;
    ALTER TABLE owned_numbers RENAME TO numbers;
    CREATE TABLE owned_adapters (
        id INTEGER PRIMARY KEY, base TEXT NOT NULL, name TEXT NOT NULL, team TEXT NOT NULL, created REAL NOT NULL,
        pinned INTEGER NOT NULL DEFAULT 0, shared INTEGER NOT NULL DEFAULT 0, UNIQUE (base, name, team)
    ) STRICT;
    INSERT INTO owned_adapters SELECT id, base, name, 'default', created, pinned, 1 FROM adapters;
    DROP TABLE adapters;
    ALTER TABLE owned_adapters RENAME TO adapters;
    """,
)


class StateDatabase:
    """One connection, shared by the threads of one process: a lock keeps transactions apart.

    Write-ahead log with synchronous=NORMAL: a commit survives the death of the process at once (0.01 ms), and the
    loss of power after `sync` (one fsync, 4 ms on the machine where it was measured). The file is never corrupt.
    """

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        self.path = directory / FILE
        self._lock = threading.RLock()
        if read_only:
            self._connection = _look(self.path)
            return
        make_private(directory)
        make_private_file(self.path)
        with _one_process(directory):
            self._connection = _connect(self.path)
            try:
                _migrate(self._connection, self.path)
            except BaseException:
                self._connection.close()
                raise

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that nobody else writes beside; rolled back when the block raises or the disk is full.

        Raises Unavailable (code disk_full).
        """
        with self._lock, _disk_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # on a full disk SQLite has rolled back already, or not
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the file throughout."""
        with self._lock:
            nested = self._connection.in_transaction
            if not nested:
                self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                if not nested:
                    self._connection.execute("COMMIT")

    def sync(self) -> None:
        """Bring every commit made so far to the disk. Has a connection of its own, so that writers need not wait."""
        try:
            with _disk_errors(), contextlib.closing(_connect(self.path)) as connection:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except Unavailable:  # no room for the table file to grow: what was committed stays in the log beside it
            with open(f"{self.path}-wal", "rb") as log:
                os.fsync(log.fileno())

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        with self._lock:
            self._connection.close()


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise
        raise Unavailable(
            "The disk that holds the server's state is full or broken. Nothing was changed.", code="disk_full"
        ) from error


@contextmanager
def _one_process(directory: Path) -> Iterator[None]:
    """Two that turn the log on at once: SQLite refuses one of them without waiting, so they wait here."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _look(path: Path) -> sqlite3.Connection:
    """Beside the server that writes it, or without one. Raises NotFound, Conflict."""
    if not path.is_file():
        raise NotFound(f"No server has used the data directory {path.parent}.", code="no_state")
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0, isolation_level=None)
    connection.row_factory = sqlite3.Row
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != len(MIGRATIONS):
        connection.close()
        raise Conflict(
            f"{path} was written by another version of Roundhouse. Start this one on it once.", code="state_version"
        )
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA foreign_keys = OFF")  # a table that is built anew takes nothing with it
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise RuntimeError(
                f"{path} was written by a newer Roundhouse (format {version}, this one knows {len(MIGRATIONS)}). "
                "Start that version, or choose another data directory."
            )
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
            for statement in _statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
            raise RuntimeError(f"{path} could not be brought to this version: rows of it refer to nothing.")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    connection.execute("PRAGMA foreign_keys = ON")


def _statements(script: str) -> Iterator[str]:
    """Single statements. `executescript` would commit the transaction that keeps a migration whole."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
