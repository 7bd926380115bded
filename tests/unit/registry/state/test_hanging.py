"""A PostgreSQL that hangs or only reads: calls have a bounded wait, and reads of the state do not wait at all."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from registry.errors import Unavailable
from registry.records import AdapterKey, NewVersion
from registry.state.database import State
from registry.storage import postgres
from registry.storage.database import Database, url_of
from tests.eventually import PATIENCE, eventually
from tests.postgres import create_database
from tests.unit.registry.makers import digest

BACKEND = sa.text("SELECT pg_backend_pid()")
"""Selects the process of a connection. If it is stopped, the kernel still acknowledges data."""


@contextmanager
def open_database(url: str) -> Iterator[Database]:
    with closing(Database(url_of(url))) as database:
        database.set_timeouts()
        yield database


def test_locks_of_a_disconnected_server_are_freed_before_others_time_out(postgres_url: str) -> None:
    words = postgres.options(url_of(postgres_url), None)["options"].split()
    settings = dict(word.removeprefix("-c").split("=") for word in words)
    assert float(settings["tcp_user_timeout"].removesuffix("s")) < float(settings["lock_timeout"].removesuffix("s"))
    assert int(settings["tcp_keepalives_count"]) * float(settings["tcp_keepalives_interval"].removesuffix("s")) <= 10
    with open_database(postgres_url) as database, database.read() as connection:
        assert connection.execute(sa.text("SHOW tcp_keepalives_idle")).scalar_one() == "0", (
            "the connection does not use TCP"
        )


@pytest.mark.parametrize("way", ["write", "commit", "read"])
def test_a_connection_to_a_stopped_process_is_given_up(
    way: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_database(postgres_url) as database:
        with database.write() as asking:
            pid: int = asking.execute(BACKEND).scalar_one()
        try:
            with pytest.raises(Unavailable) as error:  # noqa: PT012, SIM117 - also at the end of the transaction
                with (database.read if way == "read" else database.write)() as asking:
                    assert asking.execute(BACKEND).scalar_one() == pid, "the connection is reused"
                    os.kill(pid, signal.SIGSTOP)
                    monkeypatch.setattr(postgres, "WRITE_SECONDS", 0.2)
                    monkeypatch.setattr(postgres, "READ_SECONDS", 0.2)
                    if way != "commit":
                        asking.execute(sa.select(1))
            assert error.value.retry_after
            monkeypatch.setattr(postgres, "WRITE_SECONDS", PATIENCE)
            with database.write() as asking:
                assert asking.execute(sa.select(1)).scalar_one() == 1
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_call_that_gets_no_connection_finds_the_database_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind many calls to a database that hangs."""
    with closing(Database(url_of(f"sqlite:///{tmp_path / 'state.db'}"))) as database, ExitStack() as others:
        pool = database.engine.pool
        assert isinstance(pool, sa.QueuePool)
        for _ in range(pool.size() + pool._max_overflow):
            others.enter_context(database.read())
        monkeypatch.setattr(pool, "_timeout", 0.01)
        with pytest.raises(Unavailable) as error, database.read():
            pass
        assert error.value.retry_after


def test_connections_to_a_read_only_server_are_replaced(postgres_url: str) -> None:
    """As after a failover, where pooled connections go on to the server that has become a standby."""
    url = create_database(postgres_url)
    make = sa.text("CREATE TABLE IF NOT EXISTS made (id int)")
    change = sa.text(
        f"ALTER DATABASE {url_of(url).database} SET default_transaction_read_only = on"
    )  # for new sessions
    with open_database(postgres_url) as operator, open_database(url) as database:
        with operator.write() as asking:
            asking.execute(change)
        for _ in range(2):
            with pytest.raises(Unavailable, match="read-only") as error, database.write() as asking:
                asking.execute(make)
            assert (error.value.code, error.value.retry_after) == ("database_unavailable", 5)
        with operator.write() as asking:
            asking.execute(sa.text(str(change).replace("= on", "= off")))
        with database.write() as asking:
            asking.execute(make)


def test_the_wait_for_another_sessions_lock_is_bounded(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOCK_SECONDS", 1)
    key, new = AdapterKey("m", "tune"), NewVersion(digest(1), 8, 100, "test")
    with State(tmp_path, url=postgres_url) as state:
        state.adapters.register(key, new)
        schema = f"roundhouse_{(tmp_path / 'server-id').read_text().strip()}"
        with open_database(postgres_url) as other, other.write() as holding:
            holding.execute(sa.text(f'LOCK TABLE "{schema}".adapters'))
            with pytest.raises(Unavailable) as error:
                state.adapters.pin(key)
            assert error.value.retry_after
            assert not state.adapters.get(key).pinned, "reads do not wait for the lock"
            assert state.adapters.ever() == {key}
            assert state.routers.all() == ()
            assert (state.models.pins(), state.models.aliases()) == ({}, {})
        assert state.adapters.pin(key).pinned
        assert state.adapters.get(key).pinned


def test_locks_of_a_stopped_server_are_freed(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server stopped in a transaction would block all others with its locks."""
    lock = sa.select(sa.func.pg_advisory_xact_lock(5))
    with open_database(postgres_url) as other:
        monkeypatch.setattr(postgres, "IDLE_SECONDS", 1)
        with open_database(postgres_url) as stopped:
            with pytest.raises(Unavailable), stopped.write() as holding:  # noqa: PT012
                holding.execute(lock)
                with other.write() as asking:
                    asking.execute(lock)
                holding.execute(sa.select(1))

            def works_again() -> bool:
                try:
                    with stopped.write() as holding:
                        return bool(holding.execute(sa.select(1)).scalar_one() == 1)
                except Unavailable:  # a busy machine may exceed the second again
                    return False

            assert eventually(works_again)
