"""One of several servers that race for one limit: `python -m tests.unit.fleet.racer URL CAPACITY COUNT`.

Its requests race each other, too. It prints a line for each admitted one before that one continues.
"""

import asyncio
import sys
from zoneinfo import ZoneInfo

from fleet import shared_limits
from fleet.grants import BlockTable
from fleet.membership.at_once import AtOnceTable
from fleet.membership.members import open_members
from fleet.shared_limits import SharedLimits
from registry.errors import LimitExceeded
from tenants.caller import Caller
from tenants.limits.limiter import Amounts, Limiter
from tenants.limits.records import Kind, Limit
from tests.eventually import PATIENCE

NODES = ("a", "b", "c")
ONE = Amounts(money=1)


async def race(url: str, capacity: int, count: int) -> None:
    shared_limits.ANSWER_SECONDS = PATIENCE  # three processes on a busy machine
    shared, members = SharedLimits(), open_members(url, "race")
    limiter = Limiter(source=shared)
    limiter.replace([Limit("cap", "team", "search", Kind.DAY, capacity)], {"search": ZoneInfo("UTC")})
    shared.open(BlockTable(members.database, "a"), AtOnceTable(members.database, "a"), lambda: NODES, "a")

    async def request() -> None:
        caller = Caller("search")
        await limiter.prepare(caller, "m", ONE)
        try:
            admission = limiter.admit(caller, "m", ONE)
        except LimitExceeded:
            return
        print("in", flush=True)
        await asyncio.sleep(0.001)
        limiter.settle(admission, ONE)

    await asyncio.gather(*(request() for _ in range(count)))
    await shared.close()
    members.close()
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(race(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
