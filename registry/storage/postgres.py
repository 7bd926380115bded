"""Connections to PostgreSQL with a bound on every wait.

| fault                                         | bound on the wait                                         |
|-----------------------------------------------|-----------------------------------------------------------|
| its machine has gone                          | SILENCE: libpq, which by itself waits up to two hours     |
| this machine has gone, as the database sees   | the same in PostgreSQL, which then frees what it held     |
| another session holds a lock                  | LOCK_SECONDS: PostgreSQL itself                           |
| another server was stopped in a transaction   | IDLE_SECONDS: PostgreSQL ends it, and frees its locks     |
| its processes stand still, or its disk hangs  | WRITE_SECONDS and READ_SECONDS: here, where a server asks |
"""

import time
from collections.abc import Generator
from typing import Any

from sqlalchemy.engine import URL

SILENCE = {
    "connect_timeout": 5, "tcp_user_timeout": 10_000, "keepalives_idle": 5, "keepalives_interval": 5,
    "keepalives_count": 2,
}  # fmt: skip
"""Options of libpq; those of the address win."""
LOCK_SECONDS = 5
_SERVERS_SILENCE = {
    "tcp_user_timeout": "4s", "tcp_keepalives_idle": "5s", "tcp_keepalives_interval": "5s", "tcp_keepalives_count": 2,
}  # fmt: skip
"""Settings of PostgreSQL; without effect on a Unix socket. A transaction whose cable is cut ends before those who wait
for its locks give up."""
IDLE_SECONDS = 20
"""Between two statements of a transaction: less than the silence after which others take over lines of batches."""
WRITE_SECONDS, READ_SECONDS = 10.0, 30.0
"""Time limits of one statement. Writes touch a few rows; a report may sum up many."""


def options(url: URL, schema: str | None) -> dict[str, Any]:
    """Options for libpq besides the address."""
    silence: dict[str, Any] = {name: value for name, value in SILENCE.items() if name not in url.query}
    url_options = url.query.get("options", "")
    words = [f"-clock_timeout={LOCK_SECONDS}s", f"-cidle_in_transaction_session_timeout={IDLE_SECONDS}s"]
    words += [f"-c{name}={value}" for name, value in _SERVERS_SILENCE.items()]
    words += [url_options] if isinstance(url_options, str) else url_options
    words += [] if schema is None else [f"-csearch_path={schema}"]
    return silence | {"options": " ".join(filter(None, words))}


def set_timeouts(connection: Any) -> None:
    """End a new psycopg connection with OperationalError on a late answer."""
    from psycopg import IsolationLevel

    wait = connection.wait  # through which it goes for whatever it asks

    def bounded(asking: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        reads = connection.isolation_level == IsolationLevel.REPEATABLE_READ  # as `Database.read` has it
        return wait(_until(connection, asking, READ_SECONDS if reads else WRITE_SECONDS), *args, **kwargs)

    connection.wait = bounded


def _until(connection: Any, asking: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """The same for psycopg's waits, which poll ten times a second."""
    from psycopg import OperationalError

    end = time.monotonic() + seconds
    try:
        awaited = next(asking)
        while True:
            ready = yield awaited
            if not ready and time.monotonic() >= end:
                connection.close()
                raise OperationalError(f"no answer within {seconds:.0f} s")
            awaited = asking.send(ready)
    except StopIteration as done:
        return done.value
