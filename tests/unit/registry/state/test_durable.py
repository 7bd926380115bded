"""State after restarts, kills, full disks and upgrades, and state shared by threads and processes."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from registry.errors import Conflict, Unavailable
from registry.records import LoadKey, Probe
from registry.state.database import FILE, State
from registry.state.formats import MIGRATIONS, bring_up
from registry.state.tables import METADATA, VERSION_TABLE
from registry.storage.database import Database, url_of
from tests.unit.registry.makers import KEY, new


def test_measurements_of_an_older_version_are_kept(tmp_path: Path) -> None:
    """Format 1 has no bytes of host memory. For CPUs it has peaks, which are useless."""
    key = LoadKey("m", 1, "0.32.0", "NVIDIA H200")
    old = sqlite3.connect(tmp_path / FILE)
    old.executescript(MIGRATIONS[0])
    old.execute("INSERT INTO loads VALUES (?, ?, ?, ?, 900, 1000, '{}', 2, 5.0)", key)
    old.execute("INSERT INTO loads VALUES (?, ?, ?, ?, 900, 1000, '{}', 2, 5.0)", key._replace(device="cpu"))
    old.execute("PRAGMA user_version = 1")
    old.commit()
    old.close()
    with State(tmp_path) as state:
        measured = state.models.measured(key)
        assert measured is not None
        assert (measured.resident_bytes, measured.margin_bytes, measured.count, measured.host_bytes) == (
            900,
            0,
            2,
            None,
        )
        assert state.models.measured(key._replace(device="cpu")) is None
        state.models.record_load(key, 900, {}, 70)
        state.models.record_load(key, 950, {})  # without a new figure for the host
        assert (again := state.models.measured(key)) is not None
        assert (again.host_bytes, again.count) == (70, 4)


def test_adapters_from_before_teams_are_shared(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / FILE)
    for script in MIGRATIONS[:4]:
        old.executescript(script)
    old.execute("INSERT INTO digests VALUES (?, 7)", (new(1).digest,))
    old.execute("INSERT INTO adapters VALUES (5, 'm', 'a', 1.0, 1)")
    old.execute("INSERT INTO numbers VALUES ('m', 'a', 3)")
    old.execute("INSERT INTO versions VALUES (5, 3, ?, 1.0, 8, 7, 'here', 'p', 'e')", (new(1).digest,))
    old.execute("INSERT INTO currents (adapter, number) VALUES (5, 3)")
    old.execute("INSERT INTO aliases VALUES (5, 'prod', 3)")
    old.execute("PRAGMA user_version = 4")
    old.commit()
    old.close()
    with State(tmp_path) as state:
        (found,) = state.adapters.all()
        assert (found.key, found.shared, found.pinned) == (KEY, True, True)
        assert (found.current.number, found.current.probe, found.aliases) == (3, Probe("p", "e"), {"prod": 3})
        assert state.adapters.register(KEY, new(2)).version.number == 4
        state.adapters.delete(KEY, force=True)  # versions are still deleted with their adapter
        assert set(state.adapters.garbage()) == {new(1).digest, new(2).digest}


def test_addresses_that_were_stored_with_a_signature_lose_it(tmp_path: Path) -> None:
    sources = ["https://x.org/a.tar?X-Amz-Signature=5d", "https://x.org/b.tar", "org/a?b", "s3://x/c?sig=5d?6e"]
    with State(tmp_path) as state:
        for number, source in enumerate(sources):
            state.adapters.register(KEY, replace(new(number), source=source))
    with closing(sqlite3.connect(tmp_path / FILE)) as file:
        file.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0002', least = '0002'")
        file.execute("ALTER TABLE versions DROP COLUMN base_origin")
        file.execute("ALTER TABLE digests DROP COLUMN removed")
        file.commit()
    updates: list[str] = []

    def watch(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE versions "):
            updates.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", watch)
    try:
        with State(tmp_path) as state:
            found = [version.source for version in state.adapters.get(KEY).versions]
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", watch)
    assert found == ["https://x.org/a.tar?…", "https://x.org/b.tar", "org/a?b", "s3://x/c?…"]
    with closing(sqlite3.connect(tmp_path / FILE)) as file:
        plans = [file.execute(f"EXPLAIN QUERY PLAN {one}", (None,) * 3).fetchone()[3] for one in updates]
    assert plans == ["SEARCH versions USING INDEX sqlite_autoindex_versions_1 (adapter=? AND number=?)"]


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        state.adapters.register(KEY, new(1, Probe("p", "e")))
        state.adapters.register(KEY, new(2))
        state.adapters.set_alias(KEY, "prod", "v1")
        state.adapters.pin(KEY)
        state.models.set_pin("m", True)
        before = state.adapters.all()
        state._database.sync()
    state.close()  # a second time
    with State(tmp_path) as state:
        assert state.adapters.all() == before
        assert state.models.pins() == {"m": True}


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    """Whether SQLite or Alembic finds the damage."""
    with State(tmp_path) as state:
        state.adapters.register(KEY, new(1))
    whole = (tmp_path / FILE).read_bytes()
    digest = new(1).digest.encode()
    for damaged in (
        b"x" * len(whole),
        whole[:100] + b"x" * (len(whole) - 100),
        whole.replace(digest, b"\xff" * len(digest)),
    ):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(Unavailable) as refused, State(tmp_path):
            pass
        assert refused.value.code == "database_damaged"


def test_the_migrations_create_the_declared_tables(state: State) -> None:
    assert _differences(state) == []


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
def test_files_from_before_alembic_get_the_same_tables(tmp_path: Path, version: int) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as old:
        for script in MIGRATIONS[:version]:
            old.executescript(script)
        old.execute(f"PRAGMA user_version = {version}")
    bring_up(tmp_path / FILE)  # and then the server was killed, before Alembic's part
    with State(tmp_path) as state:
        found = _differences(state)
    keys = {(table.name, column.name) for table in METADATA.tables.values() for column in table.primary_key}
    # Not real differences: primary keys of STRICT tables are never null, and SQLAlchemy does not find the CASCADE of a
    # reference in a column's own line, which the test above covers.
    found = [change for change in found if change[0] not in ("remove_fk", "add_fk")]
    assert [change for change in found if change[0] != "modify_nullable" or change[2:4] not in keys] == []
    with closing(sqlite3.connect(tmp_path / FILE)) as migrated:
        assert migrated.execute("PRAGMA user_version").fetchone() == (6,), "older releases refuse it"


def _differences(state: State) -> list[Any]:
    with state._database.read() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        changes = compare_metadata(context, METADATA)
        return [change[0] if isinstance(change, list) else change for change in changes]


def test_a_server_that_switches_to_postgresql_keeps_its_state(tmp_path: Path, postgres_url: str) -> None:
    """Another server on the same database has a state of its own, as adapters refer to files of a data directory."""
    load = LoadKey("m", 1, "0.32.0", "NVIDIA H200")
    with State(tmp_path / "a") as old:
        old.adapters.register(KEY, new(1, Probe("p", "e")), "prod", shared=True)
        old.adapters.register(KEY, new(2))
        old.models.set_pin("m", True)
        old.models.record_load(load, 900, {"weights": 1.5}, 70)
        before, measured = old.adapters.all(), old.models.measured(load)
    with State(tmp_path / "a", url=postgres_url) as state, State(tmp_path / "b", url=postgres_url) as other:
        assert (state.adapters.all(), state.models.pins()) == (before, {"m": True})
        assert state.models.measured(load) == measured
        assert state.adapters.register(KEY, new(3)).version.number == 3
        assert other.adapters.all() == ()
    with State(tmp_path / "a", url=postgres_url, read_only=True) as look:
        assert look.adapters.get(KEY).current.number == 3
    with State(tmp_path / "a", url=postgres_url) as again:
        assert again.adapters.rollback(KEY).current.number == 2, "the state is not copied twice"
    with State(tmp_path / "a") as file:
        assert file.adapters.all() == before, "the file is unchanged"


def test_a_user_that_may_not_create_a_schema_is_reported(tmp_path: Path, postgres_url: str) -> None:
    server = Database(url_of(postgres_url))
    with server.write() as connection:
        connection.execute(sa.text("CREATE ROLE poor LOGIN"))
    server.close()
    with pytest.raises(Conflict, match="GRANT CREATE") as refused:
        State(tmp_path, url=postgres_url.replace("tests@", "poor@"))
    assert refused.value.code == "no_schema"


def test_a_newer_file_is_refused_and_unchanged(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        path = state.path
    connection = sqlite3.connect(path)
    connection.execute("UPDATE state_version SET version_num = '9999', least = '9999'")
    connection.commit()
    connection.close()
    for read_only in (False, True):
        with pytest.raises(Conflict, match=f"{path} was written by a newer Roundhouse"):
            State(tmp_path, read_only=read_only)


@pytest.mark.long
def test_threads_share_one_state(state: State) -> None:
    """Concurrent registrations of one name get numbers without gaps, and none is lost."""

    def work(worker: int) -> None:
        for turn in range(50):
            state.adapters.register(KEY, new(worker * 1000 + turn))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [v.number for v in state.adapters.get(KEY).versions] == list(range(1, 201))


@pytest.mark.long
def test_two_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    script = "import sys, pathlib\nfrom registry.state.database import State\nState(pathlib.Path(sys.argv[1])).close()"
    started = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(4)]
    assert [process.wait(200) for process in started] == [0, 0, 0, 0]


WRITER = """
import sys, pathlib
from registry.records import AdapterKey, NewVersion
from registry.state.database import State
state = State(pathlib.Path(sys.argv[1]))
key = AdapterKey("m", "a")
for number in range(1, 1_000_000):
    version = state.adapters.register(key, NewVersion(f"sha256:{number:064x}", 8, 1, "")).version
    state.adapters.set_alias(key, "prod", version.tag)
    if number > 20:
        state.adapters.delete_version(key, f"v{number - 10}", force=True)
    print(number, flush=True)
"""


@pytest.mark.parametrize("after", [1, 23, 60])
def test_kill_9_loses_nothing_that_was_reported(tmp_path: Path, after: int) -> None:
    """After the kill of a writer, everything that it had reported is stored, and nothing is half-written."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    reported = 0
    for line in writer.stdout:
        reported = int(line)
        if reported >= after:
            os.kill(writer.pid, signal.SIGKILL)
            break
    reported = max([reported, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    writer.wait(200)
    writer.stdout.close()
    assert writer.returncode == -signal.SIGKILL
    with State(tmp_path) as state:
        adapter = state.adapters.get(KEY)
        assert adapter.versions[-1].number in (reported, reported + 1)
        assert adapter.current == adapter.versions[-1]
        assert adapter.version("prod").number in (reported, reported + 1)
        assert state.adapters.register(KEY, new(5_000_000)).version.number == adapter.versions[-1].number + 1
    connection = sqlite3.connect(state.path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_a_full_disk_is_reported_and_changes_nothing(in_file: State) -> None:
    state = in_file
    state.adapters.register(KEY, new(1))
    engine = state._database.engine  # its only connection

    def bound(pages: int | None) -> None:
        with closing(engine.raw_connection()) as connection:
            cursor = connection.cursor()
            (found,) = cursor.execute("PRAGMA page_count").fetchone()
            cursor.execute(f"PRAGMA max_page_count = {pages or found}")

    bound(None)
    stored = []

    def fill() -> None:
        for number in range(2, 500):
            stored.append(state.adapters.register(KEY, new(number, Probe("x" * 2000, "y"))).version.digest)

    with pytest.raises(Unavailable, match="full") as refused:
        fill()
    assert refused.value.code == "disk_full"
    assert [version.digest for version in state.adapters.get(KEY).versions[1:]] == stored
    bound(100_000)
    assert state.adapters.register(KEY, new(500)).version.number == len(stored) + 2


def test_commits_are_synced_if_the_database_file_cannot_grow(in_file: State, monkeypatch: pytest.MonkeyPatch) -> None:
    in_file.adapters.register(KEY, new(1))
    synced: list[int] = []
    monkeypatch.setattr("registry.storage.database.os.fsync", synced.append)

    class Full:
        def cursor(self) -> "Full":
            return self

        def execute(self, _: str) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        def close(self) -> None:
            pass

    monkeypatch.setattr(in_file._database.engine, "raw_connection", Full)
    in_file._database.sync()
    assert len(synced) == 1


def test_commits_during_a_read_are_synced(in_file: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint stops at the reader's snapshot, and then syncs nothing."""
    in_file.adapters.register(KEY, new(1))
    synced: list[str] = []
    monkeypatch.setattr(
        "registry.storage.database.os.fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}"))
    )
    path = in_file._database.url.database
    assert path is not None
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM versions").fetchall()
        in_file.adapters.register(KEY, new(2))
        assert synced == [f"{os.path.realpath(path)}-wal"]
        reader.execute("COMMIT")
    in_file._database.sync()
    assert len(synced) == 1, "the checkpoint has synced it"
