"""Blocks of limits on a real PostgreSQL never exceed the limit, also over processes and a kill."""

import datetime
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import sqlalchemy as sa

from fleet.blocks import IDLE_SECONDS, LimitBlock, block_size
from fleet.grants import KEPT_SECONDS, BlockTable, Period, Spent, window_of
from fleet.membership.at_once import AtOnceTable
from fleet.membership.members import open_members
from fleet.membership.tables import BLOCKS, GRANTS
from tenants.limits.records import Kind, period_of, zone_of

CAP = 240


@pytest.fixture
def url(database_url: str) -> str:
    return database_url


@pytest.fixture
def table(url: str) -> Iterator[BlockTable]:
    with closing(open_members(url, "race").database) as database:
        with database.write() as connection:
            connection.execute(sa.delete(BLOCKS))
            connection.execute(sa.delete(GRANTS))
        yield BlockTable(database, "a")


def racer(url: str, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.unit.fleet.racer", url, str(CAP), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_the_statement_grants_what_the_policy_computes(table: BlockTable) -> None:
    granted = 0
    for reservation in (1, 700, 3, 1, 5000, 1, 2000, 1, 1, 4000, 7):
        expected = block_size(10_000, granted, reservation, 4)
        grant = table.take("a", 10_000, reservation, 4, "day")
        assert grant.amount == expected
        granted += grant.amount
        assert table.granted("a") == granted
    assert granted <= 10_000
    assert table.take("b", 10, 1, 4, "day").amount == 1, "another limit"


def test_three_servers_race_for_one_limit_and_one_of_them_is_killed(url: str, table: BlockTable) -> None:
    racers = [racer(url, 200) for _ in range(3)]
    killed = racers[0]
    assert killed.stdout is not None
    lines = [killed.stdout.readline()]
    killed.kill()
    for one in racers:
        assert one.stdout is not None
        lines += one.stdout.readlines()
        one.wait()
        one.stdout.close()
    admitted = sum(line == "in\n" for line in lines)
    assert 0 < admitted <= CAP
    assert table.granted("cap") <= CAP
    rest = racer(url, 200)
    output, _ = rest.communicate()
    admitted += output.count("in\n")
    assert CAP - CAP // 8 <= admitted <= CAP, "only the killed one's block stays unused"


def test_a_limit_is_used_fully_and_not_exceeded(url: str, table: BlockTable) -> None:
    racers = [racer(url, 100) for _ in range(3)]
    outputs = [one.communicate()[0] for one in racers]
    admitted = sum(output.count("in\n") for output in outputs)
    assert admitted == table.granted("cap") <= CAP
    assert admitted >= CAP - CAP // 8


def test_windows_end_by_the_databases_clock(table: BlockTable) -> None:
    minute = table.take("m", 100, 1, 1, "minute")
    day = table.take("d", 100, 1, 1, "day", "Asia/Kolkata")
    month = table.take("x", 100, 1, 1, "month", "Europe/Berlin")
    assert minute.window % 60 == 0
    assert (day.window + 19_800) % 86_400 == 0, "midnight there is 18:30 in UTC"
    assert 0 < minute.seconds <= 60
    assert 0 < day.seconds <= 86_400
    assert 0 < month.seconds <= 31 * 86_400 + 3600


@pytest.mark.parametrize(
    ("zone", "moment"),
    [
        ("Europe/Berlin", "2026-10-25 00:30:20+00"),
        ("Europe/Berlin", "2026-10-25 01:30:20+00"),
        ("Europe/Berlin", "2026-03-29 00:59:59+00"),
        ("Europe/Berlin", "2026-03-29 01:00:00+00"),
        ("America/Havana", "2026-11-01 04:30:20+00"),  # the first hour of two after midnight
        ("America/Havana", "2026-11-01 05:30:20+00"),
        ("America/Havana", "2026-10-31 12:00:00+00"),
    ],
)
def test_a_window_has_its_moment_also_as_summer_time_begins_and_ends(table: BlockTable, zone: str, moment: str) -> None:
    at = datetime.datetime.fromisoformat(moment)
    periods: dict[Period, int] = {"minute": 60, "day": 90_000, "month": 31 * 86_400 + 3600}
    ledgers: dict[Period, Kind] = {"day": Kind.DAY, "month": Kind.MONTH}
    with table._database.read() as connection:
        for period, longest in periods.items():
            window = window_of(period, zone, sa.literal(at, sa.DateTime(timezone=True)))
            begin, end = connection.execute(sa.select(*window)).one()
            assert begin <= at.timestamp() < end <= begin + longest
            if period in ledgers:
                assert (begin, end) == period_of(ledgers[period], zone_of(zone), at.timestamp())


def test_returned_amounts_can_be_taken_by_others(table: BlockTable) -> None:
    grant = table.take("a", 100, 90, 1, "day")
    assert table.take("a", 100, 50, 1, "day").amount == 10
    table.give_back("a", grant.window, 60, "day")
    assert table.take("a", 100, 50, 1, "day").amount == 50


def test_a_lowered_limit_grants_no_more(table: BlockTable) -> None:
    table.take("a", 100, 90, 1, "day")
    assert table.take("a", 50, 1, 1, "day").amount == 0
    assert table.granted("a") == 90


def test_old_windows_are_removed(table: BlockTable) -> None:
    grant = table.take("a", 100, 1, 1, "minute")
    with table._database.write() as connection:
        seconds = KEPT_SECONDS + 120
        old = {"limit_id": "a", "window": grant.window - seconds, "capacity": 1, "granted": 1, "taken": 1}
        connection.execute(sa.insert(BLOCKS).values(ends=grant.window + 60 - seconds, **old))
    assert table.prune() == 1
    assert table.granted("a") == grant.amount


def test_a_day_that_is_nearly_over_is_not_removed(table: BlockTable) -> None:
    grant = table.take("d", 100, 90, 1, "day")
    with table._database.write() as connection:
        soon = int(connection.execute(sa.select(sa.func.extract("epoch", sa.func.now()))).scalar_one()) + 600
        for rows in (BLOCKS, GRANTS):
            connection.execute(sa.update(rows).values(ends=soon))
    assert table.prune() == 0
    table.give_back("d", grant.window, 60, "day")
    assert table.granted("d") == 30


def test_earlier_spending_counts_once_and_in_its_own_window(table: BlockTable) -> None:
    today = table.take("other", 1, 1, 1, "day").window
    assert table.take("a", 100, 1, 1, "day", spent=Spent(today, 95))[:2] == (2, today)
    assert table.take("a", 100, 50, 1, "day", spent=Spent(today, 95)).granted == 100
    assert table.take("b", 100, 50, 1, "day", spent=Spent(today - 86_400, 95)).amount == 50, "that was yesterday's"
    assert table.take("c", 100, 50, 1, "day", spent=Spent(today, 1000)).granted == 100


def test_other_servers_see_granted_amounts(table: BlockTable) -> None:
    grant = table.take("a", 10**15, 10**14, 3, "month", "Europe/Berlin")
    (level,) = table.levels(["a", "b"]).values()
    assert (level.amount, level.window, level.granted) == (0, grant.window, grant.amount)
    assert abs(level.seconds - grant.seconds) < 3600


@pytest.mark.parametrize("seed", range(3))
def test_servers_that_are_killed_give_back_what_they_had_not_spent(url: str, table: BlockTable, seed: int) -> None:
    """Grants cover what servers have spent and may still spend, and never exceed the limit, whichever of them die."""
    chance, capacity = random.Random(seed), 1000
    with closing(open_members(url, "race").database) as database:
        tables = {name: BlockTable(database, name) for name in "abc"}
        left, spent = dict.fromkeys(tables, 0), dict.fromkeys(tables, 0)
        window = 0
        for _ in range(60):
            name = chance.choice("abc")
            amount = chance.randint(0, left[name])
            match chance.choice(["take", "take", "spend", "spend", "give back", "kill"]):
                case "take":
                    grant = tables[name].take("l", capacity, chance.randint(1, 90), 3, "day")
                    window, left[name] = grant.window, left[name] + grant.amount
                case "spend":
                    left[name], spent[name] = left[name] - amount, spent[name] + amount
                case "give back" if amount:
                    tables[name].give_back("l", window, amount, "day")
                    left[name] -= amount
                case "kill":
                    lost, left[name] = left[name], 0
                    returned = tables[name].give_back_unspent(lambda _limit, _since, used=spent[name]: used)
                    assert returned == ({"l": lost} if lost else {})
                    tables[name].give_back("l", window, lost + spent[name] + 1, "day")  # more than its own
            assert tables[name].granted("l") == sum(spent.values()) + sum(left.values()) <= capacity
        assert tables["a"].give_back_unspent(lambda _limit, _since: None) == {}, "the spent amounts are unknown"


def test_nothing_is_given_back_to_minutes_and_ended_windows(table: BlockTable) -> None:
    grant = table.take("m", 100, 10, 1, "minute")
    table.give_back("m", grant.window, 4, "minute")
    assert table.granted("m") == grant.amount - 4
    day = table.take("d", 100, 10, 1, "day")
    with table._database.write() as connection:
        connection.execute(sa.update(GRANTS).values(ends=day.window))
    assert table.give_back_unspent(lambda _limit, _since: 0) == {}


def test_shares_of_requests_at_once_of_racing_and_dead_servers(url: str) -> None:
    with closing(open_members(url, "race").database) as database:
        tables = {server: AtOnceTable(database, server) for server in "abc"}
        shares = dict.fromkeys(tables, 0)

        def race(server: str) -> None:
            for _ in range(10):
                shares[server] = tables[server].take("l", 10, shares[server] + 1, 3).own

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(race, tables))
        assert sum(shares.values()) == 10
        assert tables["a"].take("l", 10, 11, 3) == (shares["a"], 10)
        assert tables["a"].give_back("l", shares["a"] + 5) == (shares["a"], 10), "no more than its share"
        tables["a"].free("b")
        assert tables["b"].give_back("l", shares["b"]) == (0, 10 - shares["b"]), "it learns that it counted as dead"
        assert tables["a"].give_back("l", 0) == (0, shares["c"])
        assert tables["b"].take("other", 80, 3, 5) == (3, 3)
        assert tables["c"].take("other", 800, 1, 5) == (20, 23), "an eighth of the limit divided by five nodes"


def test_a_block_is_used_and_given_back_and_ends() -> None:
    block = LimitBlock()
    assert block.missing(1, 0.0) == 1
    block.add(10, 60, 30.0, 100.0)
    assert block.missing(4, 101.0) == 0
    block.charge(4, 101.0)
    block.release(2, 60)
    block.release(5, 0)
    assert block.left == 8, "reservations of another window are not given back"
    assert block.idle(101.0 + IDLE_SECONDS / 2) == 0
    assert (block.idle(101.0 + IDLE_SECONDS), block.left) == (8, 0)
    block.add(10, 60, 30.0, 110.0)
    assert block.missing(1, 140.0) == 1, "its window is over"
    block.add(10, 120, 60.0, 140.0)
    block.add(5, 120, 60.0, 141.0)
    assert block.left == 15
    assert (block.surplus(10), block.surplus(10), block.left) == (5, 0, 10)


def test_usage_beyond_a_block_is_made_up_for() -> None:
    block = LimitBlock()
    block.charge(3, 0.0)
    assert block.missing(1, 0.0) == 4, "requests ran before there was a block"
    block.add(4, 60, 30.0, 0.0)
    assert block.missing(1, 1.0) == 0
    block.charge(1, 1.0)
    block.release(-5, 60)
    assert (block.left, block.missing(2, 2.0), block.idle(2.0 + IDLE_SECONDS)) == (-5, 7, 0)
    assert block.missing(2, 30.0) == 2, "another window"
