"""Teams and keys in both databases."""

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from registry.errors import BadRequest, Conflict, NotFound, Unauthorized, Unavailable
from registry.state.database import FILE as STATE
from registry.state.database import open_state
from registry.storage.database import Database, url_of
from tenants.caller import EVERY, SCOPES, Scope, ServiceClass
from tenants.key_settings import FILE
from tenants.keys import pruning
from tenants.keys.accounts import AccountTable
from tenants.keys.keyring import Keyring
from tenants.keys.records import KeyRequest, check_hours, check_weight
from tenants.keys.table import KeyTable, teams_storing_texts
from tenants.limits.records import Kind, Limit
from tenants.limits.table import LimitTable
from tenants.storage.opening import open_tables
from tenants.storage.tables import METADATA, VERSION_TABLE
from tests.fakes.clocks import Clock
from tests.unit.tenants.conftest import PEPPER

CRITICAL, INTERACTIVE, BATCH = ServiceClass


def ring(table: KeyTable, clock: Clock) -> Keyring:
    _, snapshot, archived, _ = table.snapshot()
    return Keyring(snapshot, PEPPER, is_open=False, archived=archived, clock=clock)


def test_the_migrations_create_the_declared_tables(database: Database) -> None:
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_opening_the_tables_again_changes_nothing(
    database: Database, url: str | None, tmp_path: Path, clock: Clock
) -> None:
    key, text = KeyTable(database, PEPPER, clock).create(KeyRequest("default"))
    again = open_tables(tmp_path, url)
    table = KeyTable(again, PEPPER, clock)
    assert table.list_keys() == [key]
    assert ring(table, clock).identify([text]).key == key.id
    again.close()


def test_a_keys_lifetime_begins_with_its_creation(database: Database) -> None:
    table = KeyTable(database, PEPPER, itertools.count(1000.0, 7.0).__next__)
    made, _ = table.create(KeyRequest("default", seconds=60))
    assert made.expires == made.created + 60


def test_a_newer_versions_database_is_refused(database: Database, url: str | None, tmp_path: Path) -> None:
    with database.write() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999', least = '9999'"))
    with pytest.raises(Conflict, match="newer Roundhouse"):
        open_tables(tmp_path, url)


def test_teams_are_created_with_valid_ids(table: KeyTable) -> None:
    assert [team.id for team in table.list_teams()] == ["default"]
    made = table.create_team("search", "Search and ranking")
    assert made in table.list_teams()
    assert table.create_team("speech").name == "speech"
    with pytest.raises(Conflict, match="already"):
        table.create_team("search")
    for wrong in ("", "Search", "a b", "-a", "a" * 65, "a\n", "../x"):
        with pytest.raises(BadRequest):
            table.create_team(wrong)
    with pytest.raises(BadRequest):
        table.create_team("ok", "x\x00")
    with pytest.raises(BadRequest):
        table.create_team("ok", timezone="Mars/Phobos")
    with pytest.raises(BadRequest):
        table.edit_team("search", name="x\x00")
    with pytest.raises(BadRequest):
        table.edit_team("search", timezone="Mars/Phobos")
    assert table.edit_team("search", name="").name == "search"
    with pytest.raises(NotFound):
        table.list_keys("serch")


def test_keys_of_an_archived_team_are_refused(table: KeyTable, clock: Clock) -> None:
    table.create_team("search")
    _, text = table.create(KeyRequest("search"))
    assert table.archive("search", True).archived == clock.now
    with pytest.raises(Unauthorized, match="archived"):
        ring(table, clock).identify([text])
    with pytest.raises(Conflict, match="archived"):
        table.create(KeyRequest("search"))
    assert table.archive("search", False).archived is None
    assert ring(table, clock).identify([text]).team == "search"
    with pytest.raises(NotFound, match=r"There are: .*search"):
        table.archive("serch", True)
    with pytest.raises(Conflict):
        table.archive("default", True)


def test_a_key_is_stored_without_its_text(table: KeyTable, database: Database, clock: Clock) -> None:
    key_request = KeyRequest(
        "default", "index", frozenset((Scope.INFER, Scope.USAGE)), ("llama*",), ("sql", "b:*"), 60.0
    )
    key, text = table.create(key_request)
    assert (key.scopes, key.models, key.adapters) == (key_request.scopes, key_request.models, key_request.adapters)
    assert key.expires == clock.now + 60
    assert table.list_keys("default") == [key]
    caller = ring(table, clock).identify([text])
    assert (caller.team, caller.key, caller.scopes) == ("default", key.id, key_request.scopes)
    assert (caller.models, caller.adapters) == (key_request.models, key_request.adapters)
    with database.read() as connection:
        stored = str(connection.execute(sa.text("SELECT * FROM api_keys")).all())
    assert text[12:] not in stored
    assert text[12:30] not in stored


def test_a_revoked_key_stays_revoked(table: KeyTable, clock: Clock) -> None:
    key, text = table.create(KeyRequest("default"))
    assert table.revoke(key.id).revoked == clock.now
    clock.now += 5
    assert table.revoke(key.id).revoked == clock.now - 5
    with pytest.raises(Unauthorized, match="revoked"):
        ring(table, clock).identify([text])
    assert len(table.list_keys()) == 1, "a server whose keys are revoked does not become open"
    with pytest.raises(Conflict, match="revoked"):
        table.rotate(key.id, 60)
    with pytest.raises(NotFound):
        table.revoke("nobody00")


def test_rotation_has_a_grace_period(table: KeyTable, clock: Clock) -> None:
    old, before = table.create(KeyRequest("default", "app", frozenset((Scope.INFER,)), ("a*",), EVERY, 1000.0))
    new, after = table.rotate(old.id, 60.0)
    assert (new.replaces, new.name, new.scopes, new.models) == (old.id, old.name, old.scopes, old.models)
    assert new.expires == old.expires
    assert {ring(table, clock).identify([text]).key for text in (before, after)} == {old.id, new.id}
    with pytest.raises(Conflict, match=f"already: rotate its successor {new.id}"):
        table.rotate(old.id, 60.0)  # its successor would be valid only for the rest of the grace period
    clock.now += 60
    with pytest.raises(Unauthorized, match="expired"):
        ring(table, clock).identify([before])
    assert ring(table, clock).identify([after]).key == new.id
    newest, _ = table.rotate(new.id, 1e9)
    assert next(key for key in table.list_keys() if key.id == new.id).expires == old.expires, "not longer than before"
    clock.now += 2000
    with pytest.raises(Conflict, match="expired"):
        table.rotate(newest.id, 1.0)


def test_a_successor_belongs_to_the_same_account(table: KeyTable, database: Database, clock: Clock) -> None:
    account = AccountTable(database, clock).create("default", "nightly")
    key, _ = table.create(KeyRequest("default", account=account.id))
    assert key.account == account.id
    new, text = table.rotate(key.id, 60.0)
    newest, last = table.rotate(new.id, 60.0)
    assert new.account == newest.account == account.id
    AccountTable(database, clock).delete("default", account.id)
    for sent in (text, last):
        with pytest.raises(Unauthorized, match="revoked"):
            ring(table, clock).identify([sent])
    with pytest.raises(NotFound, match="service account"):
        table.create(KeyRequest("default", account=account.id))
    assert len(table.list_keys()) == 3


def test_successors_are_metered_as_the_first_key(table: KeyTable, clock: Clock) -> None:
    key, text = table.create(KeyRequest("default"))
    other, _ = table.create(KeyRequest("default"))
    new, after = table.rotate(key.id, 60.0)
    newest, last = table.rotate(new.id, 60.0)
    callers = [ring(table, clock).identify([sent]) for sent in (text, after, last)]
    assert [caller.key for caller in callers] == [key.id, new.id, newest.id]
    assert {caller.metered for caller in callers} == {key.id} != {other.id}


def test_a_rotated_key_stands_for_active_successors_only(table: KeyTable, clock: Clock) -> None:
    key, _ = table.create(KeyRequest("default"))
    table.create(KeyRequest("default"))
    new, _ = table.rotate(key.id, 0.0)
    assert ring(table, clock).by_id(key.id, "default").key == new.id
    table.revoke(new.id)
    with pytest.raises(Unauthorized, match="expired"):
        ring(table, clock).by_id(key.id, "default")


def test_the_last_administrators_key_is_not_removed(table: KeyTable) -> None:
    admin = frozenset((Scope.ADMIN,))
    last, _ = table.create(KeyRequest("default", scopes=admin))
    plain, _ = table.create(KeyRequest("default"))
    table.create_team("old")
    table.create(KeyRequest("old", scopes=admin))
    table.archive("old", True)
    revoked, _ = table.create(KeyRequest("default", scopes=admin))
    table.revoke(revoked.id)
    with pytest.raises(Conflict) as refused:
        table.check_admin_remains(lambda key: key.id == last.id)
    assert refused.value.code == "last_admin_key"
    table.check_admin_remains(lambda key: key.id == plain.id)
    table.create(KeyRequest("default", scopes=admin))
    table.check_admin_remains(lambda key: key.id == last.id)


def test_a_key_is_changed_in_the_given_fields_only(table: KeyTable, clock: Clock) -> None:
    key, _ = table.create(KeyRequest("default", seconds=100.0))
    other, _ = table.create(KeyRequest("default"))
    usage = frozenset((Scope.USAGE,))
    assert table.edit(key.id, scopes=usage) == replace(key, scopes=usage)
    assert table.edit(key.id, seconds=60.0) == replace(key, scopes=usage, expires=clock() + 60.0)
    assert other in table.list_keys()
    table.revoke(key.id)
    with pytest.raises(Conflict, match="is revoked"):
        table.edit(key.id, seconds=60.0)


def test_accounts_are_changed_and_deleted_by_their_own_team(database: Database, clock: Clock, table: KeyTable) -> None:
    accounts = AccountTable(database, clock)
    table.create_team("search")
    one, other = accounts.create("search", "one"), accounts.create("search", "other")
    assert accounts.edit("search", one.id, "first", None) == replace(one, name="first")
    assert accounts.edit("search", one.id, None, "owner") == replace(one, name="first", role="owner")
    assert other in accounts.all("search")
    for id_, team in ((one.id, "default"), ("svc_x", "search")):
        with pytest.raises(NotFound):
            accounts.edit(team, id_, "x", None)
        with pytest.raises(NotFound):
            accounts.delete(team, id_)
    accounts.delete("search", one.id)
    assert accounts.all("search") == [other]
    assert {account.id for account in accounts.all("search", deleted=True)} == {one.id, other.id}
    with pytest.raises(NotFound):
        table.create(KeyRequest("search", account=one.id))
    table.archive("search", True)
    with pytest.raises(Conflict, match="is archived"):
        accounts.create("search", "third")


def test_texts_are_stored_only_for_teams_that_opted_in(table: KeyTable, database: Database) -> None:
    table.create_team("search")
    assert teams_storing_texts(database) == []
    before = table.revision()
    assert table.edit_team("search", store_texts=True).store_texts
    assert table.edit_team("search", weight=2.0).store_texts, "other changes keep it"
    assert (teams_storing_texts(database), table.revision()) == (["search"], before + 2)
    assert not table.edit_team("search", store_texts=False).store_texts
    assert teams_storing_texts(database) == []


def test_a_teams_weight_applies_to_its_keys(table: KeyTable, clock: Clock) -> None:
    table.create_team("search", weight=2.0)
    _, text = table.create(KeyRequest("search"))
    assert ring(table, clock).identify([text]).weight == 2.0
    before = table.revision()
    assert table.edit_team("search", weight=4.0).weight == 4.0
    assert table.edit_team("search", name="Search").weight == 4.0
    assert table.revision() > before
    assert ring(table, clock).identify([text]).weight == 4.0
    for wrong in (0.0, -1.0, 1e9, float("nan"), float("inf")):
        with pytest.raises(BadRequest):
            table.edit_team("search", weight=wrong)
        with pytest.raises(BadRequest):
            table.create_team("other", weight=wrong)
    with pytest.raises(NotFound):
        table.edit_team("serch", weight=1.0)


@pytest.mark.parametrize(
    ("default", "ceiling", "expected"),
    [
        (None, None, (INTERACTIVE, INTERACTIVE)),
        (BATCH, None, (BATCH, INTERACTIVE)),
        (CRITICAL, None, (CRITICAL, CRITICAL)),
        (None, BATCH, (BATCH, BATCH)),
        (None, CRITICAL, (INTERACTIVE, CRITICAL)),
        (BATCH, CRITICAL, (BATCH, CRITICAL)),
    ],
)
def test_a_key_has_a_default_class_and_a_ceiling(
    table: KeyTable,
    clock: Clock,
    default: ServiceClass | None,
    ceiling: ServiceClass | None,
    expected: tuple[ServiceClass, ServiceClass],
) -> None:
    key, text = table.create(KeyRequest("default", service_class=default, ceiling=ceiling, timeout=30.0))
    _, rotated = table.rotate(key.id, 60.0)
    for sent in (text, rotated):
        caller = ring(table, clock).identify([sent])
        assert (caller.service_class, caller.ceiling, caller.timeout) == (*expected, 30.0)


def test_a_class_above_the_ceiling_and_invalid_timeouts_are_refused() -> None:
    with pytest.raises(BadRequest, match="ceiling"):
        KeyRequest("default", service_class=CRITICAL, ceiling=BATCH)
    for wrong in (0.0, -1.0, 1e9, float("nan")):
        with pytest.raises(BadRequest, match="timeout"):
            KeyRequest("default", timeout=wrong)


def test_every_change_raises_the_revision(table: KeyTable) -> None:
    seen = [table.revision()]

    def changed() -> bool:
        seen.append(table.revision())
        return seen[-1] > seen[-2]

    table.create_team("search")
    assert changed()
    key, _ = table.create(KeyRequest("search"))
    assert changed()
    new, _ = table.rotate(key.id, 0.0)
    assert changed()
    table.revoke(new.id)
    assert changed()
    table.archive("search", True)
    assert changed()
    table.list_keys()
    assert not changed()


@pytest.mark.parametrize(
    "wrong",
    [
        {"scopes": frozenset()}, {"models": ()}, {"models": ("a b",)}, {"adapters": ("x" * 129,)}, {"seconds": 0.0},
        {"seconds": float("nan")}, {"name": "x" * 129}, {"scopes": SCOPES, "models": ("a",)},
        {"models": ("*",) * 65}, {"scopes": frozenset((Scope.ADAPTERS,)), "adapters": ("sql-*",)},
    ],
)  # fmt: skip
def test_invalid_keys_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        KeyRequest("default", **wrong)


def test_bounds_of_keys_and_teams_include_their_ends() -> None:
    KeyRequest("default", "x" * 128, models=("a",) * 64, timeout=86_400.0)
    for weight in (0.001, 1000.0):
        check_weight(weight)
    for hours in (0, 8760):
        check_hours(hours)
    beyond: list[Callable[[], object]] = [
        lambda: KeyRequest("default", timeout=86_400.5), lambda: check_weight(1000.5), lambda: check_hours(8761),
        lambda: check_hours(-1),
    ]  # fmt: skip
    for check in beyond:
        with pytest.raises(BadRequest):
            check()


def test_keys_of_another_pepper_are_noticed(table: KeyTable, database: Database) -> None:
    with pytest.raises(Conflict, match="another pepper"):
        KeyTable(database, b"q" * 64)


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    database = open_tables(tmp_path / "data")
    with database.write() as connection:
        connection.execute(sa.text("DELETE FROM api_keys"))
        assert {p.name for p in (tmp_path / "data").iterdir()} >= {FILE, f"{FILE}-wal"}
        assert {p.stat().st_mode & 0o777 for p in (tmp_path / "data").iterdir()} == {0o600}
    database.close()


def test_urls_of_databases_are_read_or_refused() -> None:
    assert url_of("sqlite:////a/b.db").database == "/a/b.db"
    for wrong in (
        "mysql://x/y",
        "sqlite+aiosqlite://",
        "postgresql://u@h/d",
        "postgresql+psycopg://u@h:x/d",
        "no url",
        "",
    ):
        with pytest.raises(BadRequest):
            url_of(wrong)


def test_a_data_directory_may_have_any_name(tmp_path: Path) -> None:
    """In the text of an address a question mark would end the path, and the file would be outside the directory."""
    for name in ("what?", "100%", "a%3Fb", "a b#c", "ü;'&"):
        open_tables(tmp_path / name / "data").close()
        open_state(tmp_path / name / "data").close()
        assert {FILE, STATE} <= {file.name for file in (tmp_path / name / "data").iterdir()}
    assert len(list(tmp_path.iterdir())) == 5


def test_a_database_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as error:
        open_tables(tmp_path, f"postgresql+psycopg://u:hidden@/d?host={tmp_path}")
    assert error.value.code == "database_unavailable"
    assert "hidden" not in str(error.value)
    assert error.value.retry_after


def test_the_wait_for_a_lost_postgresql_is_bounded() -> None:
    """A writer may block all others, and by default libpq waits from a quarter of an hour to two hours."""
    requested: list[dict[str, object]] = []
    database = Database(url_of("postgresql+psycopg://u@db.example/d?keepalives_idle=60"))

    @sa.event.listens_for(database.engine, "do_connect")
    def connect(_dialect: object, _record: object, _args: object, given: dict[str, object]) -> None:
        requested.append(given)
        raise sqlite3.OperationalError

    with pytest.raises(Unavailable), database.read():
        pass
    assert requested[0]["tcp_user_timeout"] == 10_000
    assert requested[0]["keepalives_idle"] == "60", "the URL's setting has priority"


def test_an_interrupted_deletion_of_ended_keys_leaves_a_rotated_key_its_limits(
    database: Database, table: KeyTable, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limits are those of its chain's first key, to which the keys between lead."""
    monkeypatch.setattr(pruning, "PORTION", 1)
    chain = [table.create(KeyRequest("default"))[0].id]
    for _ in range(4):
        chain.append(table.rotate(chain[-1], 0.0)[0].id)
    limits, transaction = LimitTable(database, clock), database.write_durably
    limits.set(Limit("", "key", chain[0], Kind.MONTH, 5))
    clock.now += 40 * 86_400
    for left in (2, 1):
        begun = iter((transaction, transaction))  # the first one deletes nothing

        def write(begun: Iterator[Any] = begun) -> Any:
            if (following := next(begun, None)) is None:
                raise KeyboardInterrupt
            return following()

        monkeypatch.setattr(database, "write_durably", write)
        with pytest.raises(KeyboardInterrupt):
            pruning.prune_keys(database, clock())
        assert len(table.list_keys()) == 2 + left
        assert table.snapshot().keys[chain[-1]].caller.metered == chain[0]
        assert [limit.subject for limit in limits.all()] == [chain[0]]


def test_long_ended_keys_are_deleted_but_not_what_later_ones_need(
    database: Database, table: KeyTable, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PORTION", 1)
    day = 86_400
    revoked, _, living = (table.create(KeyRequest("default", seconds=s))[0].id for s in (None, 5.0, None))
    chain = [table.create(KeyRequest("default"))[0].id]
    for _ in range(3):
        clock.now += day
        chain.append(table.rotate(chain[-1], 0.0)[0].id)
    table.revoke(revoked)
    limits = LimitTable(database, clock)
    for key in (revoked, chain[0]):
        limits.set(Limit("", "key", key, Kind.MONTH, 5))
    revision = table.revision()
    clock.now += 40 * day
    assert pruning.prune_keys(database, clock() - 50 * day) == 0
    assert table.revision() == revision
    assert pruning.prune_keys(database, clock() - 35 * day) == 4
    assert table.revision() > revision
    assert {key.id for key in table.list_keys()} == {living, chain[0], chain[-1]}
    assert [limit.subject for limit in limits.all()] == [chain[0]]
    assert table.snapshot().keys[chain[-1]].caller.metered == chain[0], "its limits still count"
    for key in (living, chain[-1]):
        table.revoke(key)
    clock.now += 40 * day
    assert pruning.prune_keys(database, clock() - 35 * day) == 1
    assert {key.id for key in table.list_keys()} == {chain[0], chain[-1]}, "the newest of all stays, with its first"
