"""The program of a node in a race for one budget, with its ledger.

    python -m tests.faults.fleet.racing URL FOLDER NAME CAP CLIENTS FIRST

It prints `in UID` before a request continues, `done UID` once its end is in the ledger or its journal, `away` when the
database does not answer, and `end` when all clients have been refused for good. After FIRST requests, or a refusal, it
waits until the database was away, so that the race lasts until then on any machine. With 0 it does not wait.
"""

import asyncio
import secrets
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

from fleet.grants import BlockTable
from fleet.membership.at_once import AtOnceTable
from fleet.membership.members import open_members
from fleet.shared_limits import SharedLimits
from registry.errors import LimitExceeded, Unavailable
from registry.storage.files import server_id
from tenants.caller import Caller
from tenants.ledger.ledger import Ledger
from tenants.limits.history import spent_by_server
from tenants.limits.limiter import Amounts, Limiter
from tenants.limits.records import Kind, Limit
from tenants.storage.opening import open_tables
from tests.unit.tenants.test_ledger import done, entry

FLEET, TEAM = "race", "capped"
NODES = ("a", "b", "c")
ONE = Amounts(money=1)
TOKENS = 10


class Half:
    """The first half of the race, which ends once the database is away. `first` is its number of requests, or 0."""

    def __init__(self, first: int, shared: SharedLimits) -> None:
        self._left, self._shared, self.is_over = first, shared, not first

    def begin_request(self) -> None:
        self._left -= 1

    async def wait(self, *, is_refused: bool = False) -> bool:
        """Wait for its end if its requests are used up. Returns whether it was still running."""
        was_on = not self.is_over
        while not self.is_over and (is_refused or self._left <= 0):
            await asyncio.sleep(0.02)
            self.is_over |= self._shared.is_away
        return was_on


async def ask(limiter: Limiter, ledger: Ledger, half: Half) -> None:
    """Send requests as one client until the budget is used up."""
    caller = Caller(TEAM)
    while True:
        await half.wait()
        try:
            await limiter.prepare(caller, "m", ONE)
            admission = limiter.admit(caller, "m", ONE)
        except LimitExceeded:
            if await half.wait(is_refused=True):
                continue
            return
        except Unavailable:
            half.is_over = True
            print("away", flush=True)
            await asyncio.sleep(0.1)
            continue
        half.begin_request()
        row = replace(entry(time.time(), team=TEAM), uid=secrets.token_hex(16), reserved_micro=ONE.money)
        await ledger.begin(row)
        print("in", row.uid, flush=True)
        await asyncio.sleep(0.005)
        limiter.settle(admission, ONE)
        ledger.end(replace(done(row, TOKENS, 1), cost_micro=ONE.money))
        await ledger.flush()
        print("done", row.uid, flush=True)


async def race(url: str, folder: Path, name: str, cap: int, clients: int, first: int) -> None:
    with closing(open_members(url, FLEET)) as members, closing(open_tables(folder, url)) as database:
        database.set_timeouts()
        (folder / name).mkdir(exist_ok=True)
        ledger, shared = Ledger(folder / name, in_fleet=True), SharedLimits()
        limiter = Limiter(source=shared)
        await ledger.enable(database)
        limit, table = Limit("cap", "team", TEAM, Kind.DAY, cap), BlockTable(members.database, name)
        with database.read() as connection:
            table.give_back_unspent(
                lambda _, since: spent_by_server(connection, server_id(folder / name), since)["team", TEAM].total()
            )
        limiter.replace([limit], {TEAM: ZoneInfo("UTC")})
        shared.open(table, AtOnceTable(members.database, name), lambda: NODES, name)
        half = Half(first, shared)
        await asyncio.gather(*(ask(limiter, ledger, half) for _ in range(clients)))
        while ledger.journalled:
            await asyncio.sleep(0.05)
        await shared.close()
        await ledger.close()
    print("end", flush=True)


if __name__ == "__main__":
    asyncio.run(race(sys.argv[1], Path(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:])))
