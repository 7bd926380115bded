"""Concurrent changes of the same names by several servers."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa

from registry.catalog import Catalog
from registry.errors import Conflict, NotFound
from registry.records import AdapterKey, LoadKey, RouterKey
from registry.state.database import State
from registry.state.shared import watch
from registry.state.shared.tables import REVISION
from registry.storage.database import Database, url_of
from runtime.gateway.peers.sharing import SharedNames
from tests.eventually import PATIENCE, eventually
from tests.unit.registry.makers import KEY, digest, new, recipe
from tests.unit.registry.shared.rig import Sharers

MOVES = 10_000


def test_a_change_of_one_server_is_seen_by_all_others(fleet: Sharers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 600.0)  # so that only a notification causes a refresh
    first, *others = (fleet.server().watch() for _ in range(4))
    first.state.adapters.register(KEY, new(1), "prod")
    first.state.models.set_alias("fast", "m")
    for server in others:
        eventually(lambda server=server: server.state.models.aliases() == {"fast": "m"})  # type: ignore[misc]
        assert server.state.adapters.get(KEY).version("prod").digest == digest(1)
        assert server.changed.wait(PATIENCE)
    others[0].state.adapters.delete(KEY, force=True)
    eventually(lambda: first.state.adapters.all() == ())
    assert first.state.adapters.ever() == {KEY}
    assert first.changes >= 1, "its own changes are reported, too, as peers' names depend on them"


def test_a_change_with_a_lost_notification_is_found_by_the_next_poll(fleet: Sharers) -> None:
    one, other = fleet.server(), fleet.server().watch()
    one.tables.revision.channel = "nobody_listens"
    one.state.models.set_alias("fast", "m")
    eventually(lambda: other.state.models.aliases() == {"fast": "m"})


async def test_a_server_catches_up_without_a_notification(fleet: Sharers) -> None:
    one, other, applied = fleet.server(), fleet.server(), list[str]()

    def part(name: str) -> Any:
        return SimpleNamespace(**dict.fromkeys(("refresh", "follow", "wake"), partial(applied.append, name)))

    peers = SimpleNamespace(names=part("peers"))
    routers, files = part("routers"), part("files")
    names = SharedNames(
        other.tables, other.state, part("own"), cast(Any, peers), part("adapters"), routers, None, files, None
    )
    one.state.models.set_alias("fast", "m")
    await names.catch_up()
    assert other.state.models.aliases() == {"fast": "m"}
    assert applied == ["own", "peers", "routers", "files"]


def test_a_server_that_missed_no_change_reads_only_the_changed_tables(
    fleet: Sharers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = fleet.server(), fleet.server()
    revision, reads, reload = other.tables.revision, list[str](), other.state.adapters.reload

    def read(db: sa.Connection) -> Callable[[], None]:
        reads.append("adapters")
        return reload(db)

    monkeypatch.setattr(other.state.adapters, "reload", read)
    one.state.models.set_alias("fast", "m")
    revision.announced(f"{one.tables.revision.known} aliases")
    assert other.state.refresh()
    assert (other.state.models.aliases(), reads) == ({"fast": "m"}, [])
    one.state.adapters.register(KEY, new(1), "prod")  # without an announcement
    one.state.models.set_alias("fast", "n")
    revision.announced(f"{one.tables.revision.known} aliases")
    assert other.state.refresh()
    assert (other.state.models.aliases(), reads) == ({"fast": "n"}, ["adapters"])
    assert other.state.adapters.get(KEY).version("prod").digest == digest(1)
    one.state.models.set_alias("fast", "o")
    revision.announced(str(one.tables.revision.known))  # by a server of an older version
    assert other.state.refresh()
    assert (other.state.models.aliases(), reads) == ({"fast": "o"}, ["adapters", "adapters"])


def test_measurements_and_pins_are_not_shared(fleet: Sharers) -> None:
    one, other = fleet.server(), fleet.server()
    load = LoadKey("m", 1, "v1", "cpu")
    one.state.models.record_load(load, 100, {"read": 1.0})
    one.state.models.set_pin("m", True)
    other.state.refresh()
    assert (other.state.models.measured(load), other.state.models.pins()) == (None, {})
    assert one.state.models.measured(load) is not None


def test_concurrent_changes_of_one_name_are_serialised(fleet: Sharers) -> None:
    servers = [fleet.server() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda n: servers[n % 3].state.adapters.register(KEY, new(n)), range(24)))
    assert sorted(registered.version.number for registered in done) == list(range(1, 25)), "no duplicate, none lost"
    for server in servers:
        server.state.refresh()
    assert servers[0].state.adapters.all() == servers[1].state.adapters.all() == servers[2].state.adapters.all()
    assert servers[0].state.adapters.get(KEY).version("v7").digest == next(
        registered.version.digest for registered in done if registered.version.number == 7
    )


def test_a_name_that_another_server_has_just_used_is_a_conflict(fleet: Sharers) -> None:
    one, other = fleet.server(), fleet.server()  # neither refreshes, so that the name is free in the memory of both
    one.state.adapters.register(KEY, new(1))
    with pytest.raises(Conflict, match="'a' is an adapter's name already") as used:
        other.state.models.set_alias("a", "m")
    assert used.value.code == "name_in_use"
    other.state.models.set_alias("fast", "m")
    with pytest.raises(Conflict, match="'fast' is a model's alias already"):
        one.state.adapters.register(AdapterKey("m", "fast"), new(2))
    assert one.state.refresh()
    assert one.state.models.aliases() == {"fast": "m"}
    assert len(one.state.adapters.all()) == 1


def test_a_database_restored_to_an_older_state_is_refused(fleet: Sharers) -> None:
    one, other = fleet.server(), fleet.server()
    for number in range(3):
        one.state.adapters.register(KEY, new(number))
    other.state.refresh()
    with one.tables.database.write() as db:
        db.execute(sa.update(REVISION).values(number=2))
    with pytest.raises(Conflict, match="reset to an older state") as refused:
        one.state.adapters.register(KEY, new(9))
    assert refused.value.code == "older_state"
    with pytest.raises(Conflict, match="reset"):
        other.state.refresh()
    assert other.state.adapters.get(KEY).current.number == 3, "the names are unchanged"


MOVE = """
DO $$ BEGIN
    FOR step IN 1..{moves} LOOP
        PERFORM pg_advisory_xact_lock(hashtext('{schema}'));
        UPDATE aliases SET number = step %% 8 + 1 WHERE alias = 'prod';
        UPDATE aliases SET number = step %% 8 + 1 WHERE alias = 'twin';
        UPDATE revision SET number = number + 1;
        PERFORM pg_notify('{schema}', '');
        COMMIT;
    END LOOP;
END $$
"""
"""A transaction per move, like a change of a server."""


def test_no_lookup_sees_half_of_a_transaction(fleet: Sharers) -> None:
    """Two aliases move together in one transaction, so no lookup finds them at different versions."""
    writer, reader = fleet.server(), fleet.server().watch()
    for number in range(1, 9):
        writer.state.adapters.register(KEY, new(number), "prod")
    writer.state.adapters.set_alias(KEY, "twin", "prod")
    eventually(lambda: reader.state.adapters.get(KEY).aliases.get("twin") == 8)
    done, digests, halves = threading.Event(), set[str](), list[object]()

    def look_up() -> None:
        while not done.is_set():
            catalog = Catalog([recipe("m")], reader.state.adapters.all(), reader.state.models.aliases())
            prod, twin = (catalog.resolve(f"a@{alias}").version for alias in ("prod", "twin"))
            assert prod is not None
            assert twin is not None
            digests.add(prod.digest)
            if (prod.number, prod.digest) != (twin.number, digest(twin.number)):
                halves.append((prod, twin))

    with ThreadPoolExecutor(1) as pool, closing(Database(url_of(fleet.url), schema=fleet.schema)) as database:
        looking = pool.submit(look_up)
        try:
            with database.engine.connect() as connection:
                moving = connection.execution_options(isolation_level="AUTOCOMMIT")
                moving.exec_driver_sql(MOVE.format(moves=MOVES, schema=fleet.schema))
            eventually(lambda: reader.state.adapters.get(KEY).version("prod").number == MOVES % 8 + 1)
        finally:
            done.set()
        looking.result()
    assert halves == []
    assert len(digests) > 1, "the lookups saw moves"


def test_a_servers_own_names_are_unused_and_their_files_are_no_garbage(fleet: Sharers, tmp_path: Path) -> None:
    with State(tmp_path / "server-1") as own:
        own.adapters.register(KEY, new(1))
        own.routers.register(RouterKey("auto"), digest(2), 10, "request")
    shared = fleet.server().state
    assert (shared.adapters.all(), shared.routers.all()) == ((), ())
    with pytest.raises(NotFound):
        shared.adapters.get(KEY)
    assert shared.adapters.garbage([digest(1), digest(3)]) == ()
    assert shared.adapters.unknown([digest(1), digest(3)]) == {digest(3)}, "as in a fleet whose database is empty"
    assert shared.routers.reserved == {digest(2)}


def test_files_of_an_adapter_that_another_server_removed_are_garbage(fleet: Sharers) -> None:
    one, other = fleet.server().state, fleet.server().state
    one.adapters.register(KEY, new(1))
    one.adapters.delete(KEY)
    assert one.adapters.mark_removed(digest(1))
    assert (other.adapters.garbage(), other.adapters.garbage([digest(1)])) == ((), (digest(1),))
    assert not other.adapters.unknown([digest(1)])
