"""Three servers under load while their PostgreSQL is killed and comes back: nothing is lost, nothing over-admitted."""

import asyncio
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from fleet.grants import BlockTable
from fleet.membership.at_once import AtOnceTable
from fleet.membership.members import MemberTable, open_members
from fleet.shared_limits import SharedLimits
from registry.errors import LimitExceeded, Unavailable
from registry.storage.database import Database
from tenants.caller import Caller
from tenants.ledger.ledger import Ledger
from tenants.ledger.report import Grouping, UsageFilter, used
from tenants.ledger.table import LedgerTable
from tenants.limits.limiter import Amounts, Limiter
from tenants.limits.records import Kind, Limit
from tenants.storage.opening import open_tables
from tests.eventually import PATIENCE
from tests.postgres import postgres_server, programs
from tests.unit.tenants.test_ledger import HOUR, done, entry

pytestmark = pytest.mark.skipif(programs() is None, reason="there is no PostgreSQL: apt-get install postgresql")
CAP, ONE = 600, Amounts(money=1)
NODES = ("a", "b", "c")
TEAMS = {"capped": "budget", "free": "none"}


class Node:
    """A server's ledger and limits, and clients of two teams: one has a budget of CAP requests."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.ledger = name, Ledger(folder / name, in_fleet=True)
        self.shared = SharedLimits()
        self.limiter = Limiter(source=self.shared)
        self.answered, self.refused = Counter[str](), Counter[str]()

    async def open(self, database: Database, members: MemberTable) -> None:
        await self.ledger.enable(database)
        budget = Limit("cap", "team", "capped", Kind.DAY, CAP)
        self.limiter.replace([budget], {"capped": ZoneInfo("UTC")})
        at_once = AtOnceTable(members.database, self.name)
        self.shared.open(BlockTable(members.database), at_once, lambda: NODES, self.name)

    async def serve(self, team: str, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self.limiter.prepare(Caller(team), "m", ONE)
                admission = self.limiter.admit(Caller(team), "m", ONE)
            except (LimitExceeded, Unavailable) as error:
                self.refused[str(error.code)] += 1
                await asyncio.sleep(0.01)
                continue
            row = entry(team=team)
            await self.ledger.begin(row)
            await asyncio.sleep(0.002)
            self.limiter.settle(admission, ONE)
            self.ledger.end(done(row, 10, 1))
            await self.ledger.flush()
            self.answered[team] += 1


async def test_a_killed_database_that_comes_back_under_load(tmp_path: Path) -> None:
    with (
        postgres_server() as server,
        closing(open_members(server.url, "away")) as members,
        closing(open_tables(tmp_path, server.url)) as database,
    ):
        database.set_timeouts()
        nodes, stop = [Node(name, tmp_path) for name in NODES], asyncio.Event()
        for node in nodes:
            (tmp_path / node.name).mkdir()
            await node.open(database, members)
        clients = [asyncio.create_task(node.serve(team, stop)) for node in nodes for team in TEAMS for _ in range(4)]

        def answered() -> int:
            return sum(node.answered["capped"] for node in nodes)

        async with asyncio.timeout(PATIENCE):
            while answered() < CAP // 4:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.stop, signal.SIGQUIT)
            while not all(node.ledger.journalled and node.refused["limits_unavailable"] for node in nodes):
                await asyncio.sleep(0.01)
            assert not any(node.ledger.is_failing for node in nodes)
            await asyncio.to_thread(server.start)
            while any(node.ledger.journalled for node in nodes):
                await asyncio.sleep(0.01)
            while not all(node.refused["project_spend_limit_exceeded"] for node in nodes):
                await asyncio.sleep(0.01)
            stop.set()
            await asyncio.gather(*clients)
        for node in nodes:
            await node.shared.close()
            await node.ledger.close()
        rows = used(database, UsageFilter(0, HOUR, (Grouping.TEAM,)))
        for team in TEAMS:
            count = sum(node.answered[team] for node in nodes)
            (found,) = [row for row in rows if row.names == (team,)]
            assert (found.requests, found.interrupted, found.prompt_tokens) == (count, 0, 10 * count), team
        assert CAP - CAP // 8 <= answered() <= BlockTable(members.database).granted("cap") <= CAP
        assert LedgerTable(database, "any").differences() == []
