"""Connections to PostgreSQL with a bound on every wait.

| fault                                       | bound on the wait                                           |
|---------------------------------------------|-------------------------------------------------------------|
| the database's machine is unreachable       | SILENCE: libpq, which by default waits up to two hours      |
| the database cannot reach this machine      | the same settings in PostgreSQL, which then frees its locks |
| another session holds a lock                | LOCK_SECONDS: PostgreSQL itself                             |
| another server was stopped in a transaction | IDLE_SECONDS: PostgreSQL ends it and frees its locks        |
| the database's processes or disk hang       | WRITE_SECONDS and READ_SECONDS: in this module              |
"""

import time
from collections.abc import Generator
from typing import Any

from sqlalchemy.engine import URL

from registry.errors import Conflict

SILENCE = {
    "connect_timeout": 5, "tcp_user_timeout": 10_000, "keepalives_idle": 5, "keepalives_interval": 5,
    "keepalives_count": 2,
}  # fmt: skip
"""Options of libpq; options in the address take precedence."""
ENCODINGS = ("UTF8", "SQL_ASCII")
"""Encodings of databases that can store every text."""
_MARK = "roundhouse.direct"
"""A setting of each connection that tells whether its options reached PostgreSQL."""
LOCK_SECONDS = 5
_SERVERS_SILENCE = {
    "tcp_user_timeout": "4s", "tcp_keepalives_idle": "5s", "tcp_keepalives_interval": "5s", "tcp_keepalives_count": 2,
}  # fmt: skip
"""Settings of PostgreSQL, without effect on a Unix socket. A transaction that loses its connection ends before the
sessions that wait for its locks give up."""
IDLE_SECONDS = 20
"""Between two statements of a transaction. Shorter than the silence after which others take over batch lines."""
NO_RIGHTS = ("42501", "3F000")
"""PostgreSQL's codes for a user that may not create or change tables, or a schema."""
READ_ONLY = "25006"
"""PostgreSQL's code for a change on a standby, or on a server that its operator made read-only as its disk filled."""
WRITE_SECONDS, READ_SECONDS = 10.0, 30.0
"""Time limits of one statement. Writes touch a few rows, while a report may aggregate many."""


def options(url: URL, schema: str | None) -> dict[str, Any]:
    """Return options for libpq in addition to the address."""
    silence: dict[str, Any] = {name: value for name, value in SILENCE.items() if name not in url.query}
    url_options = url.query.get("options", "")
    words = [f"-clock_timeout={LOCK_SECONDS}s", f"-cidle_in_transaction_session_timeout={IDLE_SECONDS}s"]
    words += [f"-c{name}={value}" for name, value in (*_SERVERS_SILENCE.items(), (_MARK, "on"))]
    words += [url_options] if isinstance(url_options, str) else url_options
    words += [] if schema is None else [f"-csearch_path={schema}"]
    return silence | {"client_encoding": "utf8", "options": " ".join(filter(None, words))}


def check(connection: Any, _record: object = None) -> None:
    """Check a new psycopg connection. Raises Conflict (unfit_database)."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ENCODINGS:
        raise Conflict(
            f"The database has the encoding {encoding}, which cannot store every text. Name one that was created with "
            "ENCODING 'UTF8'.",
            code="unfit_database",
        )
    (mark,) = connection.execute("SELECT current_setting(%s, true)", (_MARK,)).fetchone()
    connection.rollback()
    if not mark:
        raise Conflict(
            "The database is behind a pool that drops the options of connections, such as PgBouncer, and servers would "
            "mix up their tables. Give PostgreSQL's own address; each server keeps few connections.",
            code="unfit_database",
        )


def set_timeouts(connection: Any) -> None:
    """Make a new psycopg connection raise OperationalError on a late answer."""
    from psycopg import IsolationLevel

    wait = connection.wait  # used for every request to the database

    def bounded(waiter: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        reads = connection.isolation_level == IsolationLevel.REPEATABLE_READ  # set by `Database.read`
        return wait(_until(connection, waiter, READ_SECONDS if reads else WRITE_SECONDS), *args, **kwargs)

    connection.wait = bounded


def _until(connection: Any, waiter: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """Bound one of psycopg's waits, which poll ten times a second."""
    from psycopg import OperationalError

    end = time.monotonic() + seconds
    try:
        awaited = next(waiter)
        while True:
            ready = yield awaited
            if not ready and time.monotonic() >= end:
                connection.close()
                raise OperationalError(f"no answer within {seconds:.0f} s")
            awaited = waiter.send(ready)
    except StopIteration as done:
        return done.value
