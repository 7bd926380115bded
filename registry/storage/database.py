"""A database by SQLAlchemy: one way to read and to write, on SQLite and on PostgreSQL."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from registry.errors import BadRequest, Unavailable
from registry.state.files import make_private, make_private_file

SQLITE, POSTGRES = "sqlite", "postgresql+psycopg"
BUSY_SECONDS = 5.0
"""How long a writer waits for another one: each holds the file for milliseconds."""
_READS = {"roundhouse_reads": True}


def url_of(text: str) -> URL:
    """A database's address. Raises BadRequest for one that is none, or of a kind that is not served."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise BadRequest(f"That is no address of a database. Write {POSTGRES}://user@host/name.") from None
    if url.drivername not in (SQLITE, POSTGRES):
        raise BadRequest(f"A database is {SQLITE} or {POSTGRES}, not '{url.drivername}'.")
    return url


class Database:
    """Safe to use from several threads. Nothing is connected before the first use.

    SQLite has a write-ahead log with synchronous=NORMAL: a commit survives the death of the process at once, and the
    loss of power after the next checkpoint. Writers take turns before they read, so none of them fails half-way.
    """

    def __init__(self, url: URL) -> None:
        """Raises BadRequest where the driver of PostgreSQL is not installed."""
        self.url = url
        if url.drivername == SQLITE:
            if url.database:
                path = Path(url.database)
                make_private(path.parent)
                make_private_file(path)
            self.engine = sa.create_engine(url, connect_args={"timeout": BUSY_SECONDS})
            sa.event.listen(self.engine, "connect", _prepare)
            sa.event.listen(self.engine, "begin", _begin)
            return
        try:
            self.engine = sa.create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 5})
        except (NoSuchModuleError, ImportError):
            raise BadRequest("PostgreSQL needs its driver: pip install 'psycopg[binary]'.") from None

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction; rolled back when the block raises. Raises Unavailable."""
        with _told(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that keeps no writer waiting. Raises Unavailable."""
        with _told(), self.engine.connect() as connection:
            yield connection.execution_options(**_READS)

    def close(self) -> None:
        """Close its connections. Safe to call twice."""
        self.engine.dispose()


@contextmanager
def _told() -> Iterator[None]:
    """What the database cannot do now, in our words. Its own may hold what was to be written."""
    try:
        yield
    except DBAPIError as error:
        if isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError) or error.connection_invalidated:
            raise Unavailable(
                "The server's database does not answer, or its disk is full. Nothing was changed.",
                code="database_unavailable",
                retry_after=5,
            ) from error
        raise


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin as `_begin` says
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _begin(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get("roundhouse_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
