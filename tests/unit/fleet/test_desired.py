"""Desired replicas on a real PostgreSQL: one list for each epoch, and one planning server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import sqlalchemy as sa

from fleet.membership import desired
from fleet.membership.desired import HandPlacement
from fleet.membership.members import MemberTable, open_members
from registry.errors import Unavailable
from tests.eventually import eventually
from tests.postgres import postgres, programs

pytestmark = pytest.mark.skipif(programs() is None, reason="there is no PostgreSQL: apt-get install postgresql")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture
def servers(url: str, request: pytest.FixtureRequest) -> Iterator[list[MemberTable]]:
    """Three servers of this test's fleet."""
    fleet = f"d{abs(hash(request.node.name)) % 10**9}"
    opened = [open_members(url, fleet) for _ in range(3)]
    try:
        yield opened
    finally:
        for one in opened:
            one.close()


def test_an_epoch_is_written_once_by_a_server_that_knows_the_previous_one(servers: list[MemberTable]) -> None:
    first, second, _ = (one.desired for one in servers)
    assert first.read() == ((0, {}), [])
    written = first.write(0, {"chat": ("a", "b")})
    assert written == (1, {"chat": ("a", "b")})
    assert second.write(0, {"chat": ("c",)}) is None, "it has not read epoch 1"
    assert second.read()[0] == written
    assert second.write(1, {"chat": ()}) == (2, {"chat": ()})
    assert first.write(1, {"chat": ("a",)}) is None


def test_each_epoch_is_written_by_one_of_the_racing_placers(servers: list[MemberTable]) -> None:
    def race(number: int) -> list[int]:
        table, mine = servers[number].desired, []
        for _ in range(40):
            known = table.read()[0].epoch
            if table.write(known, {"chat": (f"node-{number}",)}) is not None:
                mine.append(known + 1)
        return mine

    with ThreadPoolExecutor(3) as pool:
        epochs = [epoch for mine in pool.map(race, range(3)) for epoch in mine]
    assert sorted(epochs) == list(range(1, len(epochs) + 1))
    assert servers[0].desired.read()[0].epoch == len(epochs)


def test_one_server_plans_until_its_connection_ends(url: str, servers: list[MemberTable]) -> None:
    first, second, third = (one.desired for one in servers)
    assert first.lead()
    assert not second.lead()
    assert first.lead(), "it remains the leader"
    with closing(sa.create_engine(url).connect()) as other:  # as if its server were killed
        other.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
            )
        )
        other.commit()
    eventually(second.lead)
    with pytest.raises(Exception, match=r"database|connection"):
        first.lead()
    assert not first.lead()
    second.stop_leading()
    eventually(third.lead)


def test_a_server_that_does_not_plan_uses_one_connection(servers: list[MemberTable]) -> None:
    first, second, _ = servers
    opened = list[object]()
    sa.event.listen(second.database.engine, "connect", lambda connection, _: opened.append(connection))
    assert first.desired.lead()
    assert [second.desired.lead() for _ in range(4)] == [False] * 4
    assert len(opened) == 1


def test_a_server_that_stands_still_stops_planning(servers: list[MemberTable], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desired, "SILENT_SECONDS", 1)
    first, second, _ = (one.desired for one in servers)
    assert first.lead()
    assert not second.lead()
    eventually(second.lead)
    with pytest.raises(Unavailable):
        first.lead()
    assert not first.lead()


def test_placements_by_hand_stay_until_they_are_released(servers: list[MemberTable]) -> None:
    first, second, _ = (one.desired for one in servers)
    first.place(HandPlacement("chat", 2, ("a",)))
    first.place(HandPlacement("embed", None, ("b",)))
    first.place(HandPlacement("chat", 0))
    assert second.read()[1] == [HandPlacement("chat", 0), HandPlacement("embed", None, ("b",))]
    assert second.release("chat")
    assert not second.release("chat")
    assert first.read()[1] == [HandPlacement("embed", None, ("b",))]
