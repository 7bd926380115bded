"""Sessions on a real PostgreSQL are valid at all servers of a fleet, also after the first one has died."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from console.sessions import OF_A_KEY, Sessions
from fleet.membership.members import MemberTable, open_members
from fleet.membership.sessions import SessionTable
from fleet.membership.tables import SESSIONS
from registry.errors import Unavailable
from tenants.caller import Person, Scope
from tests.fakes.clocks import Clock
from tests.postgres import PostgresServer, postgres_server, programs

pytestmark = pytest.mark.skipif(programs() is None, reason="there is no PostgreSQL: apt-get install postgresql")
ANNE = Person("@anne000", "Anne", "search", frozenset((Scope.INFER, Scope.USAGE)))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def members(server: PostgresServer) -> Iterator[MemberTable]:
    with closing(open_members(server.url, "sessions")) as members:
        yield members


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def servers(members: MemberTable, clock: Clock) -> list[Sessions]:
    """Sessions of two servers on two ports of one host."""
    made = [Sessions(port, clock) for port in (8001, 8002)]
    for one in made:
        one.share(SessionTable(members.database, 100.0), "sessions")
    return made


def cookie(token: str) -> str:
    return f"roundhouse_session_sessions={token}"


@pytest.mark.parametrize("credential", ["key00001", ANNE])
async def test_a_browser_stays_signed_in_at_another_server(servers: list[Sessions], credential: str | Person) -> None:
    first, second = servers
    cookies = cookie(await first.begin(credential))
    assert second.credential(cookies) is None
    await second.refresh(cookies)
    found = second.credential(cookies)
    expected = credential if isinstance(credential, str) else Person(ANNE.id, ANNE.id, ANNE.team, ANNE.scopes)
    assert found == expected, "a person's name is stored nowhere"


async def test_signing_out_counts_at_all_servers(servers: list[Sessions], clock: Clock) -> None:
    first, second = servers
    cookies = cookie(await first.begin("key00001"))
    await second.refresh(cookies)
    await second.end(cookies)
    assert second.credential(cookies) is None
    assert first.credential(cookies) == "key00001", "the database is asked once a second"
    clock.now += 1.5
    await first.refresh(cookies)
    assert first.credential(cookies) is None


async def test_a_session_ends_by_the_databases_clock_and_its_token_is_not_stored(
    servers: list[Sessions], members: MemberTable
) -> None:
    first, second = servers
    token = await first.begin("key00002")
    with members.database.write() as connection:
        rows = connection.execute(sa.select(SESSIONS)).all()
        assert token not in str(rows)
        connection.execute(sa.update(SESSIONS).values(ends=sa.func.clock_timestamp()))
    await second.refresh(cookie(token))
    assert second.credential(cookie(token)) is None
    await second.begin("key00003")
    with members.database.read() as connection:
        assert connection.execute(sa.select(SESSIONS.c.owner)).scalars().all() == ["key00003"], "the others have ended"


async def test_the_sessions_of_an_owner_are_bounded(servers: list[Sessions], members: MemberTable) -> None:
    first, second = servers
    for _ in range(OF_A_KEY // 2 + 1):
        await first.begin("key00004")
        newest = await second.begin("key00004")
    with members.database.read() as connection:
        count = connection.execute(sa.select(sa.func.count()).where(SESSIONS.c.owner == "key00004")).scalar()
    assert count == OF_A_KEY
    await first.refresh(cookie(newest))
    assert first.credential(cookie(newest)) == "key00004"


async def test_known_sessions_stay_valid_while_the_database_is_down(
    servers: list[Sessions], server: PostgresServer, clock: Clock
) -> None:
    first, second = servers
    cookies = cookie(await first.begin("key00005"))
    server.stop()
    try:
        clock.now += 1.5
        await first.refresh(cookies)
        assert first.credential(cookies) == "key00005"
        await second.refresh(cookies)
        assert second.credential(cookies) is None
        for refused in (first.begin("key00005"), first.end(cookies)):
            with pytest.raises(Unavailable, match="does not answer"):
                await refused
    finally:
        server.start()
    clock.now += 1.5
    await second.refresh(cookies)
    assert second.credential(cookies) == "key00005"
