"""A limit of requests at once over three servers on a real PostgreSQL is fully used and never exceeded."""

import asyncio
from contextlib import closing
from zoneinfo import ZoneInfo

import pytest

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

SERVERS = ("a", "b", "c")
MOST = 7
CALLER = Caller("search")


def test_each_change_of_a_share_reports_the_own_one_and_the_sum(database_url: str) -> None:
    with closing(open_members(database_url, "shares")) as members:
        first, second = (AtOnceTable(members.database, name) for name in "ab")
        assert first.take("l", 10, 3, 2) == (3, 3)
        assert second.take("l", 10, 4, 2) == (4, 7)
        assert first.take("l", 10, 2, 2) == (3, 7), "it has more"
        assert second.take("l", 10, 9, 2) == (7, 10), "no more is left"
        assert first.give_back("l", 1) == (1, 8)
        assert first.give_back("l", 5) == (1, 8), "a share never grows by what is given back"
        assert second.give_back("l", 7) == (7, 8)
        assert second.take("another", 10, 2, 2) == (2, 2)
        first.free("b")
        assert first.give_back("l", 1) == (1, 1)
        assert first.give_back("unknown", 0) == (0, 0)


async def test_clients_of_three_servers_of_which_one_dies(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    monkeypatch.setattr(shared_limits, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(shared_limits, "ANSWER_SECONDS", PATIENCE)
    with closing(open_members(database_url, "once")) as members:
        tables = {name: AtOnceTable(members.database, name) for name in SERVERS}
        limiters, opened = {}, {}
        for name in SERVERS:
            opened[name] = shared = SharedLimits()
            limiters[name] = limiter = Limiter(source=shared)
            limiter.replace([Limit("l", "team", "search", Kind.AT_ONCE, MOST)], {"search": ZoneInfo("UTC")})
            shared.open(BlockTable(members.database, name), tables[name], lambda: SERVERS, name)
        running, levels = 0, list[int]()

        async def run(name: str, goal: int) -> None:
            """Send requests until so many have run at once."""
            nonlocal running
            while goal not in levels:
                try:
                    await limiters[name].prepare(CALLER, "m", Amounts())
                    admission = limiters[name].admit(CALLER, "m", Amounts())
                except LimitExceeded:
                    await asyncio.sleep(0.01)
                    continue
                running += 1
                levels.append(running)
                await asyncio.sleep(0.01)
                running -= 1
                limiters[name].settle(admission, Amounts())

        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(run(name, MOST) for name in SERVERS for _ in range(5)))
            assert max(levels) == MOST
            held = [await _admitted(limiters["a"]) for _ in range(3)]
            while tables["a"].take("l", MOST, 0, len(SERVERS)).own > len(held):
                await asyncio.sleep(0.01)  # it still has to give back its idle part
            # now it dies with its share
            opened["a"]._task.cancel()  # type: ignore[union-attr]
            levels.clear()
            await asyncio.gather(*(run(name, MOST - len(held)) for name in ("b", "c") for _ in range(5)))
            assert max(levels) == MOST - len(held)
            tables["b"].free("a")
            levels.clear()
            await asyncio.gather(*(run(name, MOST) for name in ("b", "c") for _ in range(5)))
            assert max(levels) == MOST
        for shared in opened.values():
            await shared.close()


async def _admitted(limiter: Limiter) -> object:
    while True:
        try:
            await limiter.prepare(CALLER, "m", Amounts())
            return limiter.admit(CALLER, "m", Amounts())
        except LimitExceeded:
            await asyncio.sleep(0.01)
