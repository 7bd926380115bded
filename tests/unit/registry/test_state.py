"""What survives a restart, and what does not happen by half."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.adapter_table import KEPT_CHANGES
from registry.errors import BadRequest, Conflict, NotFound, Unavailable
from registry.records import AdapterKey, LoadKey, NewVersion, Probe
from registry.schema import FILE, MIGRATIONS
from registry.state import State
from tests.unit.registry.makers import digest

KEY = AdapterKey("m", "a")


def new(number: int, probe: Probe | None = None) -> NewVersion:
    return NewVersion(digest(number), rank=8, bytes=100 + number, source=f"path {number}", probe=probe)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    ticks = iter(range(1, 1_000_000))
    with State(tmp_path / "data", clock=lambda: float(next(ticks))) as opened:
        yield opened


def test_register_point_and_roll_back(state: State) -> None:
    adapters = state.adapters
    first = adapters.register(KEY, new(1, Probe("2+2?", "4")))
    assert (first.created, first.version.tag, first.version.probe) == (True, "v1", Probe("2+2?", "4"))
    again = adapters.register(KEY, new(1))
    assert (again.created, again.version) == (False, first.version)
    corrected = adapters.register(KEY, new(1, Probe("2+2?", "four")))
    assert (corrected.created, corrected.version.tag) == (False, "v1")
    assert adapters.get(KEY).current.probe == Probe("2+2?", "four")
    assert adapters.register(KEY, new(2)).version.number == 2
    assert adapters.register(KEY, new(1)).version.number == 3, "old content again is a new version"
    assert adapters.point(KEY, "v1").current.number == 1
    assert [adapters.rollback(KEY).current.number for _ in range(3)] == [3, 2, 1]
    with pytest.raises(Conflict) as caught:
        adapters.rollback(KEY)
    assert caught.value.code == "nothing_to_roll_back"
    assert [change.event for change in adapters.history(KEY, limit=2)] == ["rolled-back", "rolled-back"]
    assert adapters.history(KEY)[0].detail == "v2 -> v1"


def test_a_version_and_its_alias_come_together_or_not_at_all(state: State) -> None:
    adapters = state.adapters
    assert adapters.register(KEY, new(1), "prod").adapter.aliases == {"prod": 1}
    for bad in ("v3", "sha256:00", "a b", ""):
        with pytest.raises(BadRequest):
            adapters.register(KEY, new(2), bad)
    assert (adapters.get(KEY).current.number, adapters.get(KEY).aliases) == (1, {"prod": 1})
    done = adapters.register(KEY, new(2), "prod")
    assert (done.created, done.version.number, done.adapter.aliases) == (True, 2, {"prod": 2})
    adapters.set_alias(KEY, "prod", "v1")
    again = adapters.register(KEY, new(2), "prod")
    assert (again.created, again.adapter.aliases) == (False, {"prod": 2})


def test_aliases(state: State) -> None:
    adapters = state.adapters
    adapters.register(KEY, new(1))
    adapters.register(KEY, new(2))
    assert adapters.set_alias(KEY, "prod", "v1").version("prod").number == 1
    assert adapters.set_alias(KEY, "prod").version("prod").number == 2
    assert adapters.set_alias(KEY, "next", "prod").aliases == {"prod": 2, "next": 2}
    assert adapters.remove_alias(KEY, "next").aliases == {"prod": 2}
    with pytest.raises(NotFound):
        adapters.remove_alias(KEY, "next")
    with pytest.raises(NotFound):
        adapters.set_alias(KEY, "x", "v7")
    for bad in ("v3", "a b", "", "../x", "x" * 65, "prod\n"):
        with pytest.raises(BadRequest):
            adapters.set_alias(KEY, bad)


def test_what_is_in_use_is_not_deleted(state: State) -> None:
    adapters = state.adapters
    for number in (1, 2, 3):
        adapters.register(KEY, new(number))
    adapters.set_alias(KEY, "prod", "v2")
    with pytest.raises(Conflict, match="alias 'prod'"):
        adapters.delete_version(KEY, "v2")
    with pytest.raises(Conflict, match="it is the current version"):
        adapters.delete_version(KEY, "v3")
    with pytest.raises(Conflict, match="held by alias 'prod'"):
        adapters.delete(KEY)
    assert state.adapters.garbage() == ()
    left = adapters.delete_version(KEY, "v2", force=True)
    assert left is not None
    assert (left.aliases, left.current.number) == ({}, 3)
    left = adapters.delete_version(KEY, "v3", force=True)
    assert left is not None
    assert left.current.number == 1, "the one that was current before, of those that are left"
    assert adapters.delete_version(KEY, "v1", force=True) is None
    with pytest.raises(NotFound):
        adapters.get(KEY)
    assert adapters.garbage() == (digest(1), digest(2), digest(3))


def test_a_pin_holds_too_and_numbers_go_on(state: State) -> None:
    adapters = state.adapters
    adapters.register(KEY, new(1))
    assert adapters.pin(KEY).pinned
    with pytest.raises(Conflict, match="its pin"):
        adapters.delete(KEY)
    assert not adapters.pin(KEY, False).pinned
    adapters.delete(KEY)
    assert adapters.register(KEY, new(2)).version.number == 2, "a@v1 must never mean other content than before"
    assert [change.event for change in adapters.history(KEY)] == [
        "registered", "deleted", "unpinned", "pinned", "registered",
    ]  # fmt: skip


def test_deleting_a_version_mends_the_way_back(state: State) -> None:
    """1, 2, 1: without 2 the two 1s become one, so that a rollback never lands where it is."""
    adapters = state.adapters
    adapters.register(KEY, new(1))
    adapters.register(KEY, new(2))
    adapters.point(KEY, "v1")
    adapters.delete_version(KEY, "v2")
    with pytest.raises(Conflict):
        adapters.rollback(KEY)


def test_garbage(state: State) -> None:
    adapters = state.adapters
    adapters.register(KEY, new(1))
    adapters.register(AdapterKey("other", "a"), new(1))
    adapters.delete(KEY)
    assert adapters.garbage(on_disk=[digest(1), digest(9)]) == (digest(9),)
    assert not adapters.forget(digest(1))
    adapters.delete(AdapterKey("other", "a"))
    assert adapters.garbage() == (digest(1),)
    assert adapters.forget(digest(1))
    assert adapters.garbage() == ()


def test_history_is_bounded(state: State) -> None:
    state.adapters.register(KEY, new(1))
    for turn in range(KEPT_CHANGES + 50):
        state.adapters.pin(KEY, turn % 2 == 0)
    assert len(state.adapters.history(KEY, limit=10_000)) == KEPT_CHANGES


def test_bad_names_change_nothing(state: State) -> None:
    for key in (AdapterKey("m", "../a"), AdapterKey("m", ""), AdapterKey("m", "a\n"), AdapterKey("m", "x" * 65)):
        with pytest.raises(BadRequest):
            state.adapters.register(key, new(1))
    with pytest.raises(BadRequest):
        state.adapters.register(KEY, NewVersion("sha256:12", 8, 1, ""))
    assert state.adapters.all() == ()


def test_models(state: State) -> None:
    models = state.models
    models.set_pin("m", True)
    models.set_pin("n", False)
    models.set_pin("m", None)
    assert models.pins() == {"n": False}
    models.set_alias("chat", "m")
    models.set_alias("chat", "n")
    assert models.aliases() == {"chat": "n"}
    models.remove_alias("chat")
    with pytest.raises(NotFound):
        models.remove_alias("chat")


def test_measured_loads(state: State) -> None:
    key = LoadKey("m", 1, "0.32.0", "cpu")
    assert state.models.measured(key) is None
    state.models.record_load(key, 1000, {"weights": 1.0})
    state.models.record_load(key, 900, {"weights": 2.0, "warming": 5.0})
    measured = state.models.measured(key)
    assert measured is not None
    assert (measured.resident_bytes, measured.peak_bytes, measured.count) == (900, 1000, 2)
    assert measured.seconds == pytest.approx({"weights": 1.3, "warming": 5.0})
    assert state.models.measured(key._replace(recipe_version=2)) is None


def test_measured_sleeps(state: State) -> None:
    key = LoadKey("m", 1, "0.32.0", "NVIDIA H200")
    assert state.models.slept(key) is None
    state.models.record_sleep(key, 50, 900, 10.0)
    state.models.record_wake(key, 2.0)
    state.models.record_sleep(key, 60, 950, 0.0)
    slept = state.models.slept(key)
    assert slept is not None
    assert (slept.device_bytes, slept.host_bytes, slept.count) == (60, 950, 2)
    assert slept.seconds == pytest.approx({"sleep": 7.0, "wake": 2.0})


def test_loads_that_an_older_version_measured_stay(tmp_path: Path) -> None:
    """A file of format 1 has no bytes of host memory."""
    key = LoadKey("m", 1, "0.32.0", "cpu")
    old = sqlite3.connect(tmp_path / FILE)
    old.executescript(MIGRATIONS[0])
    old.execute("INSERT INTO loads VALUES (?, ?, ?, ?, 900, 1000, '{}', 2, 5.0)", key)
    old.execute("PRAGMA user_version = 1")
    old.commit()
    old.close()
    with State(tmp_path) as state:
        measured = state.models.measured(key)
        assert measured is not None
        assert (measured.peak_bytes, measured.count, measured.host_bytes) == (1000, 2, None)
        state.models.record_load(key, 900, {}, 70)
        state.models.record_load(key, 950, {})  # it grew: nothing new is known of the host
        assert (again := state.models.measured(key)) is not None
        assert (again.host_bytes, again.count) == (70, 4)


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        state.adapters.register(KEY, new(1, Probe("p", "e")))
        state.adapters.register(KEY, new(2))
        state.adapters.set_alias(KEY, "prod", "v1")
        state.adapters.pin(KEY)
        state.models.set_pin("m", True)
        before = state.adapters.all()
        state.sync()
    state.close()  # a second time
    with State(tmp_path) as state:
        assert state.adapters.all() == before
        assert state.models.pins() == {"m": True}


def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        path = state.path
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(RuntimeError, match="newer Roundhouse"):
        State(tmp_path)


def test_threads_share_one_state(state: State) -> None:
    """Two clients that register one name at once: two versions, none lost, numbers without gaps."""

    def work(worker: int) -> None:
        for turn in range(50):
            state.adapters.register(KEY, new(worker * 1000 + turn))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [v.number for v in state.adapters.get(KEY).versions] == list(range(1, 201))


def test_two_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    script = "import sys, pathlib\nfrom registry.state import State\nState(pathlib.Path(sys.argv[1])).close()"
    started = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(4)]
    assert [process.wait(60) for process in started] == [0, 0, 0, 0]


WRITER = """
import sys, pathlib
from registry.records import AdapterKey, NewVersion
from registry.state import State
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
def test_kill_9_loses_nothing_that_was_told(tmp_path: Path, after: int) -> None:
    """A writer dies in the middle of its work: all it had reported is there, and nothing is there by half."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    told = 0
    for line in writer.stdout:
        told = int(line)
        if told >= after:
            os.kill(writer.pid, signal.SIGKILL)
            break
    told = max([told, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    writer.wait(30)
    assert writer.returncode == -signal.SIGKILL
    with State(tmp_path) as state:
        adapter = state.adapters.get(KEY)
        assert adapter.versions[-1].number in (told, told + 1)
        assert adapter.current == adapter.versions[-1]
        assert adapter.version("prod").number in (told, told + 1)
        assert state.adapters.register(KEY, new(5_000_000)).version.number == adapter.versions[-1].number + 1
    connection = sqlite3.connect(state.path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_a_full_disk_is_told_and_changes_nothing(state: State) -> None:
    state.adapters.register(KEY, new(1))
    connection = state._database._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    stored = []

    def fill() -> None:
        for number in range(2, 500):
            stored.append(state.adapters.register(KEY, new(number, Probe("x" * 2000, "y"))).version.digest)

    with pytest.raises(Unavailable, match="full") as refused:
        fill()
    assert refused.value.code == "disk_full"
    assert [version.digest for version in state.adapters.get(KEY).versions[1:]] == stored
    connection.execute("PRAGMA max_page_count = 100000")
    assert state.adapters.register(KEY, new(500)).version.number == len(stored) + 2


def test_what_was_committed_is_synced_where_the_table_file_cannot_grow(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.adapters.register(KEY, new(1))
    synced: list[int] = []
    monkeypatch.setattr("registry.schema.os.fsync", synced.append)

    class Full:
        def execute(self, _: str) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        def close(self) -> None:
            pass

    monkeypatch.setattr("registry.schema._connect", lambda _: Full())
    state.sync()
    assert len(synced) == 1
