"""The keyring of a running server follows the tables."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from registry.errors import Conflict, RoundhouseError, Unauthorized, Unavailable
from registry.storage.database import Database
from tenants.caller import EVERYBODY, Person, Scope
from tenants.key_settings import FILE, HAD_KEYS, KeySettings
from tenants.keys import secret
from tenants.keys.records import KeyRequest
from tenants.keys.table import KeyTable
from tenants.storage.opening import open_tables
from tenants.storage.tables import KEYRING, KEYS, VERSION_TABLE
from tenants.watch import POLL_SECONDS, KeyWatch
from tests.eventually import eventually
from tests.unit.tenants.conftest import PEPPER


async def test_the_first_key_closes_an_open_server_and_a_revoked_one_does_not_open_it(
    tmp_path: Path, url: str | None
) -> None:
    place = KeySettings(tmp_path, url, PEPPER.decode())
    watch = KeyWatch(place)
    await watch.start()
    assert watch.keyring().identify([]) is EVERYBODY
    tables = open_tables(tmp_path, url)
    table = KeyTable(tables, PEPPER)
    table.create_team("search")
    await watch.look()
    assert watch.keyring().identify([]) is EVERYBODY, "a team without a key does not close the server"
    key, text = table.create(KeyRequest("search"))
    await watch.look()
    assert watch.keyring().identify([text]).key == key.id
    with pytest.raises(Unauthorized):
        watch.keyring().identify([])
    table.archive("search", True)
    await watch.look()
    with pytest.raises(Unauthorized, match="archived"):
        watch.keyring().identify([text])
    table.archive("search", False)
    table.revoke(key.id)
    await watch.look()
    with pytest.raises(Unauthorized, match="revoked"):
        watch.keyring().identify([text])
    with pytest.raises(Unauthorized):
        watch.keyring().identify([])
    await watch.close()
    tables.close()


async def test_a_server_open_to_other_hosts_requires_keys_unless_configured(tmp_path: Path) -> None:
    closed, opened = (KeyWatch(KeySettings(tmp_path, loopback=False, open=stated)) for stated in (False, True))
    for watch in (closed, opened):
        await watch.start()
    assert opened.keyring().identify(["none"]) is EVERYBODY
    with pytest.raises(Unauthorized):
        closed.keyring().identify(["none"])
    for watch in (closed, opened):
        await watch.close()
    assert list(tmp_path.iterdir()) == [], "a server without keys creates no files for them"


async def test_known_keys_stay_valid_without_the_database(tmp_path: Path) -> None:
    tables = open_tables(tmp_path)
    table = KeyTable(tables, secret.load_pepper(tmp_path))
    key, text = table.create(KeyRequest("default"))
    watch = KeyWatch(KeySettings(tmp_path))
    await watch.start()
    tables.close()
    for file in tmp_path.glob("tenants.db*"):
        file.unlink()
    (tmp_path / "tenants.db").mkdir()
    assert watch.keyring().identify([text]).key == key.id
    await watch.close()


async def test_a_server_that_lost_its_keys_does_not_open(tmp_path: Path, url: str | None) -> None:
    tables = open_tables(tmp_path, url)
    KeyTable(tables, PEPPER).create(KeyRequest("default"))
    place = KeySettings(tmp_path, url, PEPPER.decode())
    watch = KeyWatch(place)
    await watch.start()
    with tables.write() as connection:
        connection.execute(sa.delete(KEYS))
        connection.execute(sa.update(KEYRING).values(revision=KEYRING.c.revision + 1))
    for _ in range(2):
        with pytest.raises(Conflict, match="had keys"):
            await watch.look()
    with pytest.raises(Unauthorized):
        watch.keyring().identify([])
    await watch.close()
    tables.close()
    if url is None:
        (tmp_path / FILE).unlink()
    with pytest.raises(Conflict, match="had keys"):
        await KeyWatch(place).start()
    for safe in (replace(place, loopback=False), replace(place, sign_in=True)):
        other = KeyWatch(safe)
        await other.start()
        await other.close()
    (tmp_path / HAD_KEYS).unlink()
    fresh = KeyWatch(place)
    await fresh.start()
    assert fresh.keyring().identify([]) is EVERYBODY
    await fresh.close()


def _folder_in_its_place(folder: Path) -> None:
    (folder / FILE).mkdir()


def _no_database(folder: Path) -> None:
    (folder / FILE).write_bytes(b"no database " * 1000)


def _keys_of_another_pepper(folder: Path) -> None:
    with closing(open_tables(folder)) as tables:
        KeyTable(tables, PEPPER).create(KeyRequest("default"))


def _pepper_that_cannot_be_read(folder: Path) -> None:
    _keys_of_another_pepper(folder)
    (folder / secret.FILE).mkdir()


def _tables_of_a_newer_version(folder: Path) -> None:
    with closing(open_tables(folder)) as tables, tables.write() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999', least = '9999'"))


UNREADABLE = (
    _folder_in_its_place, _no_database, _keys_of_another_pepper, _pepper_that_cannot_be_read,
    _tables_of_a_newer_version,
)  # fmt: skip


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("spoil", UNREADABLE)
async def test_unreadable_keys_close_an_open_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], is_open: bool
) -> None:
    monkeypatch.setattr("tenants.watch.POLL_SECONDS", 0.01)
    watch = KeyWatch(KeySettings(tmp_path, open=is_open))
    await watch.start()
    assert watch.keyring().identify([]) is EVERYBODY
    spoil(tmp_path)
    await asyncio.to_thread(eventually, lambda: _is_shut(watch))
    with pytest.raises(Unavailable) as refused:
        watch.keyring().identify([])
    assert refused.value.code == "keys_unreadable"
    with pytest.raises(Unavailable, match="See its log"):
        watch.keyring().identify(["rh-some"])
    async with watch._looking:  # otherwise a check could create new tables, which would then be removed
        for file in tmp_path.iterdir():
            file.rmdir() if file.is_dir() else file.unlink()
    await asyncio.to_thread(eventually, lambda: not _is_shut(watch))
    assert watch.keyring().identify([]) is EVERYBODY, "after the unreadable files were removed there is no key"
    with closing(open_tables(tmp_path)) as tables:
        key, text = KeyTable(tables, secret.load_pepper(tmp_path)).create(KeyRequest("default"))
        await watch.look()
    assert watch.keyring().identify([text]).key == key.id
    await watch.close()


@pytest.mark.parametrize("spoil", UNREADABLE)
async def test_a_server_does_not_start_with_unreadable_keys(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(tmp_path)
    with pytest.raises((RoundhouseError, sa.exc.DatabaseError)):
        await KeyWatch(KeySettings(tmp_path, open=True)).start()


async def test_a_key_of_a_newer_version_closes_an_open_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenants.watch.POLL_SECONDS", 0.01)
    watch = KeyWatch(KeySettings(tmp_path))
    await watch.start()
    with closing(open_tables(tmp_path)) as tables:
        with tables.write() as connection:
            team = {"scopes": ["of a newer version"], "models": ["*"], "adapters": ["*"], "team": "default"}
            connection.execute(sa.insert(KEYS).values(id="Ab3dE6gH", name="", hash=b"", created=1.0, **team))
        await asyncio.to_thread(eventually, lambda: _is_shut(watch))
        with tables.write() as connection:
            connection.execute(sa.update(KEYS).values(scopes=["infer"]))
        await asyncio.to_thread(eventually, lambda: not _is_shut(watch))
    with pytest.raises(Unauthorized):
        watch.keyring().identify([])
    await watch.close()


async def test_an_unreadable_data_directory_closes_an_open_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.watch.POLL_SECONDS", 0.01)
    watch = KeyWatch(KeySettings(tmp_path))
    await watch.start()

    def refused(_: KeySettings) -> bool:
        raise PermissionError

    monkeypatch.setattr(KeySettings, "has_tables", refused)
    await asyncio.to_thread(eventually, lambda: _is_shut(watch))
    await watch.close()


async def test_requests_are_refused_until_the_ledger_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise requests would run without a row in the ledger."""
    monkeypatch.setattr("tenants.watch.POLL_SECONDS", 0.01)
    is_broken = True

    async def enable(_: Database) -> None:
        if is_broken:
            raise Unavailable("not now")

    watch = KeyWatch(KeySettings(tmp_path), enable)
    await watch.start()
    with closing(open_tables(tmp_path)) as tables:
        key, text = KeyTable(tables, secret.load_pepper(tmp_path)).create(KeyRequest("default"))
    await asyncio.to_thread(eventually, lambda: _is_shut(watch, text))
    is_broken = False
    await asyncio.to_thread(eventually, lambda: not _is_shut(watch, text))
    assert watch.keyring().identify([text]).key == key.id
    await watch.close()


async def test_an_empty_database_file_of_a_full_disk_closes_nothing(tmp_path: Path) -> None:
    watch = KeyWatch(KeySettings(tmp_path))
    await watch.start()
    (tmp_path / FILE).touch()
    await watch.look()
    assert watch.keyring().identify([]) is EVERYBODY
    await watch.close()


async def test_known_keys_stay_valid_while_checks_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tenants.watch.POLL_SECONDS", 0.01)
    with closing(open_tables(tmp_path)) as tables:
        key, text = KeyTable(tables, secret.load_pepper(tmp_path)).create(KeyRequest("default"))
    watch = KeyWatch(KeySettings(tmp_path))
    await watch.start()

    def lost(_: KeyTable) -> int:
        raise Unavailable("not now")

    monkeypatch.setattr(KeyTable, "revision", lost)
    await asyncio.to_thread(eventually, lambda: "known keys stay valid" in caplog.text)
    assert watch.keyring().identify([text]).key == key.id
    with pytest.raises(Unauthorized):
        watch.keyring().identify([])
    await watch.close()


def _is_shut(watch: KeyWatch, *keys: str) -> bool:
    try:
        watch.keyring().identify(keys)
    except Unavailable as error:
        return error.code == "keys_unreadable"
    except Unauthorized:
        return False
    return False


async def test_a_start_with_another_pepper_fails(tmp_path: Path) -> None:
    tables = open_tables(tmp_path)
    KeyTable(tables, PEPPER)
    tables.close()
    with pytest.raises(Conflict, match="another pepper"):
        await KeyWatch(KeySettings(tmp_path)).start()


async def test_concurrent_checks_open_the_database_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the first one is cancelled."""
    made: list[Database] = []
    reported: list[Database] = []
    opens, may_go = threading.Event(), threading.Event()

    def opening(*place: Any) -> Database:
        opens.set()
        may_go.wait()
        made.append(open_tables(*place))
        return made[-1]

    async def opened(database: Database) -> None:
        await asyncio.sleep(0)  # lets others run
        reported.append(database)

    monkeypatch.setattr("tenants.watch.open_tables", opening)
    watch = KeyWatch(KeySettings(tmp_path, open=True), opened)
    first = asyncio.create_task(watch.tables())
    await asyncio.to_thread(opens.wait)
    first.cancel()
    others = [asyncio.create_task(watch.tables()) for _ in range(3)]
    await asyncio.wait({first, *others}, timeout=0.2)
    may_go.set()
    assert {database for _, database in await asyncio.gather(*others)} == set(made)
    assert reported == made
    assert len(made) == 1
    await watch.close()


async def test_a_slow_check_does_not_restore_a_revoked_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the keys from before the revocation."""
    tables = open_tables(tmp_path)
    table = KeyTable(tables, secret.load_pepper(tmp_path))
    key, text = table.create(KeyRequest("default"))
    has_read, may_go = threading.Event(), threading.Event()
    snapshot = KeyTable.snapshot

    def slow(self: KeyTable) -> Any:
        found = snapshot(self)
        if not has_read.is_set():
            has_read.set()
            may_go.wait()
        return found

    watch = KeyWatch(KeySettings(tmp_path))
    await watch.start()
    monkeypatch.setattr(KeyTable, "snapshot", slow)
    table.create_team("search")
    first = asyncio.create_task(watch.look())
    await asyncio.to_thread(has_read.wait)
    table.revoke(key.id)
    second = asyncio.create_task(watch.look())
    await asyncio.wait({second}, timeout=0.2)
    may_go.set()
    await asyncio.gather(first, second)
    with pytest.raises(Unauthorized, match="revoked"):
        watch.keyring().identify([text])
    await watch.close()
    tables.close()


async def test_looking_for_keys_creates_no_tables(tmp_path: Path) -> None:
    await KeyWatch(KeySettings(tmp_path)).look()
    assert not (tmp_path / FILE).exists()


async def test_with_sign_in_a_server_without_keys_is_closed_and_has_its_teams(tmp_path: Path, url: str | None) -> None:
    watch = KeyWatch(KeySettings(tmp_path, url, PEPPER.decode(), sign_in=True))
    await watch.start()
    with pytest.raises(Unauthorized):
        watch.keyring().identify([])
    table, _ = await watch.tables()
    default = watch.keyring().member(Person("@abcdefg", "ada", "default", frozenset((Scope.INFER,))))
    assert default.salt, "its prompts share no cache with other teams"
    table.create_team("search", weight=2.0)
    await watch.look()
    assert watch.keyring().member(Person("@abcdefg", "ada", "search", frozenset())).weight == 2.0
    table.archive("search", True)
    await watch.look()
    with pytest.raises(Unauthorized):
        watch.keyring().member(Person("@abcdefg", "ada", "search", frozenset()))
    await watch.close()


async def test_a_server_with_tables_but_no_key_stays_open(tmp_path: Path) -> None:
    opened: list[Database] = []

    async def enable(database: Database) -> None:
        opened.append(database)

    watch = KeyWatch(KeySettings(tmp_path, None, PEPPER.decode()), enable)
    await watch.start()
    assert watch.is_unclaimed
    await watch.make_tables()
    await watch.look()
    assert len(opened) == 1
    assert watch.keyring().identify([]) is EVERYBODY
    table, _ = await watch.tables()
    table.create(KeyRequest("default"))
    await watch.look()
    assert not watch.is_unclaimed
    await watch.close()


async def test_tables_that_cannot_be_created_do_not_close_an_open_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(data_dir: Path, _: object) -> Database:
        (data_dir / FILE).write_bytes(b"half of a database")
        raise Unavailable("The disk is full.", code="disk_full")

    monkeypatch.setattr("tenants.watch.open_tables", full)
    watch = KeyWatch(KeySettings(tmp_path, None, PEPPER.decode()))
    await watch.start()
    await watch.make_tables()
    assert "usage is not counted" in caplog.text
    assert not (tmp_path / FILE).exists()
    await watch.look()
    assert watch.keyring().identify([]) is EVERYBODY
    await watch.close()


# --- servers of a fleet ----------------------------------------------------------------------------------------------
async def test_a_revoked_key_is_refused_by_all_servers_within_a_second(tmp_path: Path, url: str | None) -> None:
    place = KeySettings(tmp_path, url, PEPPER.decode(), in_fleet=True)
    watches = [KeyWatch(place) for _ in range(2)]
    for watch in watches:
        await watch.start()
    tables = open_tables(tmp_path, url)
    table = KeyTable(tables, PEPPER)
    table.create_team("search")
    key, text = table.create(KeyRequest("search"))
    for watch in watches:
        await watch.look()
    assert watches[0].derive("sign-in") == watches[1].derive("sign-in") != watches[1].derive("other")

    def is_known(watch: KeyWatch) -> bool:
        try:
            return watch.keyring().identify([text]).key == watch.keyring().by_exact_id(key.id).key == key.id
        except Unauthorized:
            return False

    await asyncio.to_thread(eventually, lambda: all(is_known(watch) for watch in watches))
    table.revoke(key.id)
    await asyncio.to_thread(eventually, lambda: not any(is_known(watch) for watch in watches))
    assert 2 * POLL_SECONDS <= 1.0, "a check every half second, which starts after the previous one"
    for watch in watches:
        await watch.close()
    tables.close()


async def test_a_fleets_database_in_an_older_state_is_refused(tmp_path: Path, url: str | None) -> None:
    """A backup from before a revocation does not restore the key."""
    tables = open_tables(tmp_path, url)
    table = KeyTable(tables, PEPPER)
    table.create_team("search")
    key, text = table.create(KeyRequest("search"))
    before = table.revision()
    table.revoke(key.id)
    place = KeySettings(tmp_path, url, PEPPER.decode(), in_fleet=True)
    watch, single = KeyWatch(place), KeyWatch(replace(place, in_fleet=False))
    for one in (watch, single):
        await one.look()
    with tables.write() as connection:
        connection.execute(sa.update(KEYRING).values(revision=before))
        connection.execute(sa.update(KEYS).values(revoked=None))
    with pytest.raises(Unavailable, match="older state"):
        await watch.look()
    for _ in range(3):
        table.create(KeyRequest("search"))
    for refused in (watch.look, watch.tables):
        with pytest.raises(Unavailable, match="older state"):
            await refused()
    with pytest.raises(Unauthorized, match="revoked"):
        watch.keyring().identify([text])
    await single.look()
    assert single.keyring().identify([text]).key == key.id, "a single server accepts its database"
    for one in (watch, single):
        await one.close()
    tables.close()
