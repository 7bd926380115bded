"""Servers under load while their PostgreSQL or one of them is killed and restarted.

Nothing is lost, and no limit is exceeded.
"""

import asyncio
import signal
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from fleet.grants import BlockTable
from fleet.membership.at_once import AtOnceTable
from fleet.membership.members import MemberTable, open_members
from fleet.shared_limits import SharedLimits
from registry.errors import LimitExceeded, Unavailable
from registry.storage.database import Database
from registry.storage.files import server_id
from runtime.gateway.peers.opening import give_back_unspent
from tenants.caller import Caller
from tenants.keys.table import KeyTable
from tenants.ledger.ledger import Ledger
from tenants.ledger.report import Grouping, UsageFilter, used
from tenants.ledger.table import LedgerTable
from tenants.limits.limiter import Amounts, Limiter
from tenants.limits.records import Kind, Limit
from tenants.limits.table import LimitTable
from tenants.storage.opening import open_tables
from tests.eventually import PATIENCE
from tests.postgres import postgres_server, programs
from tests.unit.tenants.test_ledger import HOUR, done, entry

pytestmark = pytest.mark.skipif(programs() is None, reason="there is no PostgreSQL: apt-get install postgresql")
CAP, ONE = 600, Amounts(money=1)
BUDGET = Limit("cap", "team", "capped", Kind.DAY, CAP)
NODES = ("a", "b", "c")
TEAMS = {"capped": "budget", "free": "none"}


class Node:
    """A server's ledger and limits, and clients of two teams: one has a budget of CAP requests."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder / name
        self.ledger = Ledger(self.folder, in_fleet=True)
        self.shared = SharedLimits()
        self.limiter = Limiter(source=self.shared)
        self.answered, self.refused = Counter[str](), Counter[str]()

    async def open(self, database: Database, members: MemberTable, budget: Limit = BUDGET) -> None:
        await self.ledger.enable(database)
        await asyncio.to_thread(give_back_unspent, members.database, server_id(self.folder), self.ledger)
        self.limiter.replace([budget], {"capped": ZoneInfo("UTC")})
        server = server_id(self.folder)
        at_once = AtOnceTable(members.database, server)
        self.shared.open(BlockTable(members.database, server), at_once, lambda: NODES, self.name)

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

    async def spend(self, *, most: int, cost: int | None) -> int:
        """Run one request, and return what it counts. cost: None if it does not end."""
        amounts = Amounts(money=most)
        await self.limiter.prepare(Caller("capped"), "m", amounts)
        admission = self.limiter.admit(Caller("capped"), "m", amounts)
        row = replace(entry(time.time(), team="capped"), reserved_micro=most)
        await self.ledger.begin(row)
        if cost is None:
            return most
        self.limiter.settle(admission, Amounts(money=cost))
        self.ledger.end(replace(done(row), cost_micro=cost))
        await self.ledger.flush()
        return cost

    async def give_back(self) -> None:
        """Give all of its blocks back."""
        for meter in self.shared.meters():
            self.shared.give_back(meter, meter.block.surplus(0))
        await self.shared._settle()

    async def kill(self) -> None:
        """End it without giving anything back."""
        assert self.shared._task is not None
        self.shared._task.cancel()
        await self.ledger.close()


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
        assert CAP - CAP // 8 <= answered() <= BlockTable(members.database, "any").granted("cap") <= CAP
        assert LedgerTable(database, "any").differences() == []


async def test_a_killed_server_that_starts_again_gives_back_what_it_had_not_spent(tmp_path: Path) -> None:
    """Settled requests count with their costs, and those running at its end with the most that they could cost."""
    with (
        postgres_server() as server,
        closing(open_members(server.url, "killed")) as members,
        closing(open_tables(tmp_path, server.url)) as database,
    ):
        KeyTable(database, b"pepper").create_team("capped")
        limit = LimitTable(database).set(Limit("", "team", "capped", Kind.MONTH, CAP))
        killed, other, again = (Node(name, tmp_path) for name in ("a", "b", "a"))
        table = BlockTable(members.database, "any")
        for node in (killed, other):
            (tmp_path / node.name).mkdir()
            await node.open(database, members, limit)
        costs = [await killed.spend(most=5, cost=cost) for cost in (3, 0, None, 2, None)]
        stale = next(iter(killed.shared.meters()))
        window, left = stale.block.window, stale.block.left
        assert left > 0
        assert table.granted(limit.id) == sum(costs) + left
        await killed.kill()
        await again.open(database, members, limit)
        assert table.granted(limit.id) == sum(costs), "everything unspent is given back"
        BlockTable(members.database, server_id(killed.folder)).give_back(limit.id, window, left + sum(costs), "month")
        assert table.granted(limit.id) == sum(costs), "but not twice"
        for node in (other, again, other):
            with suppress(LimitExceeded):
                while True:
                    costs.append(await node.spend(most=1, cost=1))
            await node.give_back()
        assert sum(costs) == table.granted(limit.id) == CAP
        for node in (other, again):
            await node.shared.close()
            await node.ledger.close()
