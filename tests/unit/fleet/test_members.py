"""Membership on a real PostgreSQL: leases by its clock, and one server for each name."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest
import sqlalchemy as sa

from fleet.membership import members as member_module
from fleet.membership.members import (
    DEAD_SECONDS,
    FORGOTTEN_DAYS,
    LEASE_SECONDS,
    MemberTable,
    NewMember,
    OlderState,
    open_members,
)
from fleet.membership.tables import MEMBERS, RENEWALS, VERSION_TABLE
from registry.errors import BadRequest, Conflict, NotFound, Unavailable


@pytest.fixture
def url(database_url: str) -> str:
    return database_url


@pytest.fixture
def members(url: str, request: pytest.FixtureRequest) -> Iterator[MemberTable]:
    """The members of this test's fleet."""
    with closing(open_members(url, f"f{abs(hash(request.node.name)) % 10**9}")) as members:
        yield members


def server(name: str = "node-1", data: str = "data-1", address: str = "https://10.0.0.1:8443") -> NewMember:
    return NewMember(name, data, "node" if address else "front", address, "1.0")


def age(members: MemberTable, name: str, seconds: float) -> None:
    """Age a member's lease by so many seconds."""
    with members.database.write() as connection:
        later = MEMBERS.c.lease_until - timedelta(seconds=seconds)
        connection.execute(sa.update(MEMBERS).where(MEMBERS.c.name == name).values(lease_until=later))


def test_a_server_joins_stays_and_leaves(members: MemberTable) -> None:
    boot = members.join(server())
    assert [one.name for one in members.list()] == ["node-1"]
    present = members.renew("node-1", boot)
    assert present is not None
    assert [(one.name, one.role, one.address, one.draining) for one in present] == [
        ("node-1", "node", "https://10.0.0.1:8443", False)
    ]
    assert 0 < present[0].lease_seconds <= LEASE_SECONDS
    age(members, "node-1", 6.0)
    assert [one.lease_seconds <= LEASE_SECONDS - 6.0 for one in members.list()] == [True]
    members.leave("node-1", boot - 1)
    members.leave("node-2", boot)
    assert len(members.list()) == 1, "neither an earlier run nor another server ends its lease"
    members.leave("node-1", boot)
    assert members.list() == []


def test_the_databases_clock_is_known_even_if_this_machines_is_wrong(
    members: MemberTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    with members.database.read() as connection:
        now = float(connection.execute(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))).scalar_one())
    for look in (members.read_clock, lambda: members.renew("node-1", members.join(server()))):
        members._clock_ahead = 0.0
        look()
        assert now <= members.now() < now + 600


def test_an_expired_lease_does_not_count(members: MemberTable) -> None:
    boot = members.join(server())
    age(members, "node-1", LEASE_SECONDS + 1)
    assert members.list() == []
    assert members.renew("node-1", boot) is not None  # it was only unreachable
    assert [one.name for one in members.list()] == ["node-1"]


def test_a_name_belongs_to_one_server_while_its_lease_lasts(members: MemberTable) -> None:
    boot = members.join(server())
    for work in (members.check, members.join):
        with pytest.raises(Conflict, match=r"has a server 'node-1' already at https://10.0.0.1:8443.*fleet ca issue"):
            work(server(data="data-2"))
    age(members, "node-1", LEASE_SECONDS + 1)
    later = members.join(server(data="data-2"))
    assert later > boot
    assert members.renew("node-1", boot) is None, "another server has the name"


def test_a_copy_of_a_data_directory_is_refused_under_another_name(members: MemberTable) -> None:
    boot = members.join(server())
    for work in (members.check, members.join):
        with pytest.raises(Conflict, match=r"'node-1' with this data directory, or with a copy of it.*--data-dir"):
            work(server("node-2"))
    members.leave("node-1", boot)
    members.join(server("node-2"))


def test_a_restart_on_the_same_data_gets_its_name_back_at_once(members: MemberTable) -> None:
    boot = members.join(server())
    assert members.join(server()) == boot + 1


def test_a_node_is_drained_and_undrained(members: MemberTable) -> None:
    boot = members.join(server())
    members.drain("node-1", True)
    assert [one.draining for one in members.renew("node-1", boot) or ()] == [True]
    members.drain("node-1", False)
    assert [one.draining for one in members.list()] == [False]
    with pytest.raises(NotFound, match=r"no server 'node-9'. There are: node-1"):
        members.drain("node-9", True)


def test_sqlite_is_refused_as_a_fleets_database() -> None:
    with pytest.raises(BadRequest, match="--database postgresql"):
        open_members("sqlite:///fleet.db", "tests")


def test_a_fleet_of_a_newer_version_is_refused(members: MemberTable, url: str) -> None:
    schema = members.database._schema
    with members.database.write() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999', least = '9999'"))
    with pytest.raises(Conflict, match="written by a newer Roundhouse"):
        open_members(url, str(schema).removeprefix("roundhouse_fleet_"))


def test_a_dead_servers_rows_are_ended_but_not_those_of_a_silent_one(members: MemberTable) -> None:
    for name, silence in (("node-1", 0.0), ("node-2", 30.0), ("node-3", DEAD_SECONDS + 1.0)):
        members.join(server(name, f"data-{name}"))
        age(members, name, LEASE_SECONDS + silence if silence else 0.0)
    age(members, "node-1", LEASE_SECONDS)
    members.join(server("before", "data-node-1"))
    age(members, "before", 1000.0)
    members.join(server("node-1", "data-node-1"))  # the server of this data directory is alive under another name
    swept: list[str] = []

    def end_rows(data: str) -> int:
        swept.append(data)
        return 7

    assert members.sweep(end_rows) == {"node-3": 7}
    assert swept == ["data-node-3"]


def test_rows_of_a_dead_server_are_ended_once(members: MemberTable, monkeypatch: pytest.MonkeyPatch) -> None:
    members.join(server("node-1", "data-1"))
    age(members, "node-1", LEASE_SECONDS + DEAD_SECONDS + 1.0)

    def fail(_: str) -> int:
        raise Unavailable("no")

    with pytest.raises(Unavailable):
        members.sweep(fail)
    assert members.sweep(lambda _: 1) == {"node-1": 1}, "the first try failed"
    assert members.sweep(lambda _: 1) == {}
    monkeypatch.setattr(member_module, "SWEPT_SECONDS", 0.0)
    assert members.sweep(lambda _: 1) == {"node-1": 1}, "much later"
    monkeypatch.undo()
    members.join(server("node-1", "data-1"))
    assert members.sweep(lambda _: 1) == {}
    age(members, "node-1", LEASE_SECONDS + DEAD_SECONDS + 2.0)
    assert members.sweep(lambda _: 1) == {"node-1": 1}, "it was there again"


def test_a_server_that_left_long_ago_is_forgotten(members: MemberTable, monkeypatch: pytest.MonkeyPatch) -> None:
    month = FORGOTTEN_DAYS * 86_400.0
    old, recent, alive = (members.join(server(name, f"data-{name}")) for name in ("old", "recent", "alive"))
    age(members, "old", LEASE_SECONDS + month + 1.0)
    age(members, "recent", LEASE_SECONDS + month - 600.0)
    age(members, "alive", LEASE_SECONDS + month + 1.0)  # the database's clock jumped before it renewed its lease

    def names() -> list[str]:
        with members.database.read() as connection:
            return sorted(connection.execute(sa.select(MEMBERS.c.name)).scalars())

    assert members.sweep(lambda _: 0) == {}
    assert names() == ["alive", "old", "recent"], "it is looked at again later"
    assert members.renew("alive", alive) is not None
    monkeypatch.setattr(member_module, "SWEPT_SECONDS", 0.0)
    assert members.sweep(lambda _: 1) == {"old": 1, "recent": 1}
    assert names() == ["alive", "recent"]
    assert members.join(server("old", "data-new")) >= old > 10**9, "a time: nodes ignore reports of an earlier boot"
    assert members.join(server("recent", "data-recent")) == recent + 1


def test_one_server_sweeps_at_a_time(members: MemberTable, url: str) -> None:
    members.join(server("node-1", "data-1"))
    age(members, "node-1", LEASE_SECONDS + DEAD_SECONDS + 1.0)
    schema = members.database._schema
    assert schema is not None
    with closing(open_members(url, schema.removeprefix("roundhouse_fleet_"))) as other:

        def end_rows(_: str) -> int:
            assert other.sweep(lambda _: pytest.fail("both at once")) == {}
            return 1

        assert members.sweep(end_rows) == {"node-1": 1}
        assert other.sweep(lambda _: 2) == {"node-1": 2}


def test_a_restored_older_database_is_noticed_by_servers_that_know_more(members: MemberTable) -> None:
    boot = members.join(server())
    for _ in range(3):
        members.renew("node-1", boot)
    with members.database.write() as connection:
        connection.execute(sa.update(RENEWALS).values(count=1))  # as from a backup
        before = connection.execute(sa.select(MEMBERS.c.lease_until)).scalar_one()
    for _ in range(2):
        with pytest.raises(OlderState):
            members.renew("node-1", boot)
    with members.database.read() as connection:
        assert connection.execute(sa.select(MEMBERS.c.lease_until)).scalar_one() == before
        assert connection.execute(sa.select(RENEWALS.c.count)).scalar_one() == 1, "the database is not changed"
