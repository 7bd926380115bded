"""Read and write a database through SQLAlchemy, on SQLite or PostgreSQL."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from registry.errors import BadRequest, Conflict, Unavailable
from registry.storage import postgres
from registry.storage.files import is_still, make_private, make_private_file, unusable

SQLITE, POSTGRES = "sqlite", "postgresql+psycopg"
BUSY_SECONDS = 5.0
"""Longest wait of a writer for another. Each holds the file for milliseconds."""
PAUSE = 0.01
"""Seconds between transactions that delete many rows in turn. SQLite's writers do not queue: without a pause, the next
transaction begins before a writer that waits tries again."""
_READS = {"roundhouse_reads": True}
PRAGMAS = ("foreign_keys = ON", "journal_mode = WAL", "synchronous = NORMAL")


def url_of(text: str) -> URL:
    """Parse a database's address. Raises BadRequest if it is malformed or of another kind of database."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        raise BadRequest(
            f"This is not the address of a database. Write {POSTGRES}://user@host/name. In a password, write %40 for "
            "@, %3A for :, %2F for / and %25 for %."
        ) from None
    if url.drivername not in (SQLITE, POSTGRES):
        raise BadRequest(f"A database cannot be '{url.drivername}'. Write {POSTGRES}://user@host/name.")
    return url


def file_url(path: Path) -> URL:
    """Return the address of an SQLite file. In a text, a `?` in its path would end the path."""
    return URL.create(SQLITE, database=str(path.absolute()))


class Database:
    """Thread-safe. Connects at first use.

    SQLite uses a write-ahead log with synchronous=NORMAL: a commit survives the death of the process at once, and the
    loss of power after `sync` or the next checkpoint. Writers take turns before they read, so none of them fails
    half-way.
    """

    def __init__(self, url: URL, *, schema: str | None = None, read_only: bool = False) -> None:
        """schema: PostgreSQL's schema of the tables; its writers take turns, as on SQLite.

        Raises BadRequest if the driver of PostgreSQL is not installed, Unavailable for a file that cannot be used.
        """
        self.url, self._schema = url, schema
        if url.drivername == SQLITE:
            self.engine = sa.create_engine(_of_file(url, read_only), connect_args={"timeout": BUSY_SECONDS})
            sa.event.listen(self.engine, "connect", partial(_prepare, PRAGMAS[:1] if read_only else PRAGMAS))
            sa.event.listen(self.engine, "begin", _begin)
            return
        try:
            self.engine = sa.create_engine(url, pool_pre_ping=True, connect_args=postgres.options(url, schema))
        except (NoSuchModuleError, ImportError):
            raise BadRequest("PostgreSQL needs its driver: pip install 'psycopg[binary]'.") from None
        sa.event.listen(self.engine, "connect", postgres.check)
        sa.event.listen(self.engine, "handle_error", _leave_read_only)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    def set_timeouts(self) -> None:
        """Bound every wait for an answer on new connections, for processes that serve requests."""
        if not self.is_sqlite:
            self.engine.dispose()
            sa.event.listen(
                self.engine, "connect", lambda connection, _: postgres.set_timeouts(connection), insert=True
            )

    def make_schema(self) -> None:
        """Create the schema if it is missing. Raises Unavailable, Conflict if this user may not."""
        if self._schema is None:
            return
        with self.write() as connection:
            try:
                if not sa.inspect(connection).has_schema(self._schema):
                    connection.execute(sa.schema.CreateSchema(self._schema))
            except sa.exc.ProgrammingError as error:
                raise Conflict(
                    "The server's user must be allowed to create a schema in its database: GRANT CREATE ON DATABASE.",
                    code="no_schema",
                ) from error

    @contextmanager
    def closing_on_error(self) -> Iterator[None]:
        """Close the connections if the block raises."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextmanager
    def write_beside_others(self) -> Iterator[sa.Connection]:
        """Open a transaction as `write` does, in which the caller locks what it changes. Raises Unavailable."""
        with translate_errors(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Open a transaction, which is rolled back if the block raises. Raises Unavailable."""
        with self.write_beside_others() as connection:
            if self._schema is not None:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(self._schema))))
            yield connection

    @contextmanager
    def write_durably(self) -> Iterator[sa.Connection]:
        """Open a transaction as `write` does, whose commit also survives a loss of power."""
        with self.write() as connection:
            yield connection
        self.sync()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open a transaction that blocks no writer and sees one consistent state. Raises Unavailable."""
        options = _READS if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        with translate_errors(), self.engine.connect() as connection:
            yield connection.execution_options(**options)

    def sync(self) -> None:
        """Flush all commits to the disk. PostgreSQL does so at each commit."""
        if not self.is_sqlite:
            return
        try:
            with translate_errors(), closing(self.engine.raw_connection()) as connection:
                rows = connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            [(busy, logged, copied)] = rows
            is_left = busy or logged != copied  # another connection reads an older state, or checkpoints
        except Unavailable:  # no room for the table file to grow
            is_left = True
        if is_left:  # commits are still in the log
            try:
                with open(f"{self.url.database}-wal", "rb") as log:
                    os.fsync(log.fileno())
            except OSError as error:  # its folder was moved or removed
                raise Unavailable(
                    f"The server's state cannot be written to its disk: {error.strerror}.", code="disk_full"
                ) from error

    def pause(self) -> None:
        """Let others write between transactions that delete many rows in turn. Raises Unavailable.

        SQLite's log also becomes empty, unless another connection uses it now. Otherwise it would grow by all of them:
        its commits copy the log, but while others write, they seldom reach its end, where the next one may begin again.
        """
        if self.is_sqlite:
            with translate_errors(), closing(self.engine.raw_connection()) as connection:
                cursor = connection.cursor()
                cursor.execute("PRAGMA busy_timeout = 0")  # it would wait for readers while others wait for it
                try:
                    cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                finally:  # the connection is used again
                    cursor.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
        time.sleep(PAUSE)

    def close(self) -> None:
        """Close the connections. Safe to call twice."""
        self.engine.dispose()


def _of_file(url: URL, read_only: bool) -> URL:
    """Return SQLite's address of a file, which is created unless it is only read. Raises Unavailable."""
    if not url.database:
        return url
    path = Path(url.database)
    if read_only:
        still = {"immutable": "1"} if is_still(path) else {}
        return url.set(database=f"file:{quote(url.database)}", query={"mode": "ro", "uri": "true", **still})
    try:
        make_private(path.parent)
        make_private_file(path)
    except OSError as error:
        raise Unavailable(unusable(error, path), code="database_unavailable") from error
    return url


def inserting(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that supports ON CONFLICT."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def put(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> None:
    """Insert a row, or update the one with the same primary key; other columns keep their values."""
    key = [column.name for column in table.primary_key]
    changed = {name: value for name, value in values.items() if name not in key}
    insert = inserting(connection, table).values(**values)
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=changed))


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the database's errors, whose own texts may contain values that were to be written."""
    try:
        yield
    except sqlite3.Error as error:  # raised by connections without SQLAlchemy
        raise _unavailable(error) from error
    except sa.exc.TimeoutError as error:  # all connections are in use, as when the database hangs
        raise _unavailable(None) from error
    except DBAPIError as error:
        unreachable = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError) or error.connection_invalidated
        if unreachable or _code(error.orig) in _DAMAGED:
            raise _unavailable(error.orig) from error
        if isinstance(error, sa.exc.DataError):  # PostgreSQL refuses NUL in texts, and texts longer than their column
            raise BadRequest("The database cannot store such a text or number. Nothing was changed.") from error
        if isinstance(error, sa.exc.ProgrammingError) and error.statement is None:  # an unknown option of the address
            raise BadRequest(f"This address of a database cannot be used: {str(error.orig).strip()}.") from error
        if getattr(error.orig, "sqlstate", None) in postgres.NO_RIGHTS:
            raise Conflict(
                "The database user may not create or change tables. Make it the owner of the database, or GRANT it "
                "CREATE on the database and ALL on its schema public.",
                code="unfit_database",
            ) from error
        raise


def driver_message(error: Unavailable) -> str:
    """Return the driver's words if PostgreSQL refused a connection or could not be reached, else ''.

    They may name hosts, users and databases, and are only for the server's operator.
    """
    cause = error.__cause__
    if not isinstance(cause, DBAPIError) or cause.statement is not None or isinstance(cause.orig, sqlite3.Error):
        return ""
    return " ".join(str(cause.orig).split())


_DAMAGED = sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB


def _code(error: BaseException | None) -> int:
    """Return SQLite's primary error code; 0 for other errors."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _unavailable(error: BaseException | None) -> Unavailable:
    is_no_text = isinstance(error, sqlite3.OperationalError) and not _code(error)  # Python cannot decode a stored text
    if _code(error) in _DAMAGED or is_no_text:
        return Unavailable(
            "A database file of the server is damaged. Restore a backup into a new data directory: roundhouse restore.",
            code="database_damaged",
        )
    if getattr(error, "sqlite_errorcode", 0) in (sqlite3.SQLITE_IOERR_SHMMAP, sqlite3.SQLITE_IOERR_SHMLOCK):
        return Unavailable(
            "The file system of the server's state cannot map files into memory or lock them, like some network "
            "shares. Move the data directory to a local disk (--data-dir), or name a PostgreSQL (--database).",
            code="database_unavailable",
        )
    if _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return Unavailable(
            "The disk that holds the server's state is full or broken. Nothing was changed.", code="disk_full"
        )
    if _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return Unavailable(
            "A database file of the server cannot be opened or written. It and its folder must exist, belong to the "
            "server's user, and be on a writable disk. Nothing was changed.",
            code="database_unavailable",
            retry_after=5,
        )
    if _code(error) == sqlite3.SQLITE_BUSY:
        return Unavailable(
            "Another program locks a database file of the server, or its file system has no locks, like some network "
            "shares. Nothing was changed.",
            code="database_unavailable",
            retry_after=5,
        )
    if getattr(error, "sqlstate", None) == postgres.READ_ONLY:
        return Unavailable(
            "The server's database is read-only, like a standby. Nothing was changed.",
            code="database_unavailable",
            retry_after=5,
        )
    return Unavailable(
        "The server's database does not answer, or its disk is full. Nothing was changed.",
        code="database_unavailable",
        retry_after=5,
    )


def _leave_read_only(context: sa.engine.ExceptionContext) -> None:
    """Let the pool replace its connections to a server that only reads, as after a failover. A new one may write."""
    if getattr(context.original_exception, "sqlstate", None) == postgres.READ_ONLY:
        context.is_disconnect = True


def _prepare(pragmas: Sequence[str], connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin as `_begin` says
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _begin(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get("roundhouse_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


class PreparedStatement:
    """Passes many rows to the driver unchanged, while SQLAlchemy would inspect every value.

    Args:
        names: of the statement's parameters, in the order of a row's values. None of them may have a type that
            SQLAlchemy has to convert.
    """

    def __init__(self, statement: sa.Insert | sa.Update, dialect: sa.Dialect, names: Sequence[str]) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=list(names))
        self.sql = str(compiled)
        self._row = _by_position(compiled.positiontup, names) if compiled.positional else _by_name(names)

    def run(self, connection: sa.Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run the statement, and return how many rows it inserted or changed."""
        return connection.exec_driver_sql(self.sql, [self._row(row) for row in rows]).rowcount if rows else 0


def _by_position(order: Sequence[str] | None, names: Sequence[str]) -> Callable[[tuple[Any, ...]], Any]:
    positions = [names.index(name) for name in order or ()]
    if positions == list(range(len(names))):
        return tuple
    return lambda row: tuple([row[position] for position in positions])


def _by_name(names: Sequence[str]) -> Callable[[tuple[Any, ...]], Any]:
    return lambda row: dict(zip(names, row, strict=True))
