"""The five SQLite formats before Alembic, by `PRAGMA user_version`.

Alembic's first revision equals the fifth (`migrations`); nothing is added here any more.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from registry.errors import Conflict
from registry.storage.database import translate_errors

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


def bring_up(path: Path) -> None:
    """Upgrade a file to the last of these formats. New files and Alembic's stay as they are.

    Raises Conflict if rows have dangling references, Unavailable.
    """
    if not path.is_file():
        return
    with translate_errors(), closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")  # rebuilding a table must not delete rows that refer to it
        connection.execute("BEGIN IMMEDIATE")
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if 0 < version < len(MIGRATIONS):
                _migrate(connection, version, path)
        except BaseException:
            connection.rollback()
            raise
        connection.execute("COMMIT")


def _migrate(connection: sqlite3.Connection, version: int, path: Path) -> None:
    for script in MIGRATIONS[version:]:
        for statement in _statements(script):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
        raise Conflict(
            f"{path} could not be upgraded to this version: it has rows with dangling references.", code="state_version"
        )


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements, because `executescript` would commit the migration's transaction."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
