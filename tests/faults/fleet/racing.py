"""A node's part in a race for one budget, with its ledger.

    python -m tests.faults.fleet.racing URL FOLDER NAME CAP CLIENTS

It prints `in UID` before a request goes on, `done UID` once its end is in the ledger or its journal, `away` when the
database does not answer, and `end` when all clients were refused for good.
"""

import asyncio
import secrets
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

from fleet.grants import BlockTable
from fleet.membership.members import open_members
from fleet.shared_limits import SharedLimits
from registry.errors import LimitExceeded, Unavailable
from tenants.caller import Caller
from tenants.ledger.ledger import Ledger
from tenants.limits.limiter import Amounts, Limiter
from tenants.limits.records import Kind, Limit
from tenants.storage.opening import open_tables
from tests.unit.tenants.test_ledger import done, entry

FLEET, TEAM = "race", "capped"
NODES = ("a", "b", "c")
ONE = Amounts(money=1)
TOKENS = 10


async def ask(limiter: Limiter, ledger: Ledger) -> None:
    """One client, until the budget is used up."""
    caller = Caller(TEAM)
    while True:
        try:
            await limiter.prepare(caller, "m", ONE)
            admission = limiter.admit(caller, "m", ONE)
        except LimitExceeded:
            return
        except Unavailable:
            print("away", flush=True)
            await asyncio.sleep(0.1)
            continue
        row = replace(entry(team=TEAM), uid=secrets.token_hex(16))
        await ledger.begin(row)
        print("in", row.uid, flush=True)
        await asyncio.sleep(0.005)
        limiter.settle(admission, ONE)
        ledger.end(done(row, TOKENS, 1))
        await ledger.flush()
        print("done", row.uid, flush=True)


async def race(url: str, folder: Path, name: str, cap: int, clients: int) -> None:
    with closing(open_members(url, FLEET)) as members, closing(open_tables(folder, url)) as database:
        database.set_timeouts()
        (folder / name).mkdir(exist_ok=True)
        ledger, shared = Ledger(folder / name, in_fleet=True), SharedLimits()
        limiter = Limiter(source=shared)
        await ledger.enable(database)
        limiter.replace([Limit("cap", "team", TEAM, Kind.DAY, cap)], {TEAM: ZoneInfo("UTC")})
        shared.open(BlockTable(members.database), lambda: NODES, name)
        await asyncio.gather(*(ask(limiter, ledger) for _ in range(clients)))
        while ledger.journalled:
            await asyncio.sleep(0.05)
        await shared.close()
        await ledger.close()
    print("end", flush=True)


if __name__ == "__main__":
    asyncio.run(race(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
