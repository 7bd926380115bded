"""Riders are written in the transaction of a ledger row's end, and only if the row was open."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from registry.errors import Unavailable
from registry.storage.database import Database
from tenants.caller import Caller
from tenants.ledger import writer as writer_module
from tenants.ledger.journal import Journal
from tenants.ledger.report import UsageFilter, used
from tenants.ledger.rows import BATCH
from tenants.ledger.table import LedgerTable
from tenants.ledger.writer import LedgerWriter
from tenants.limits.history import history_of
from tenants.limits.limiter import Amounts, Limiter
from tenants.limits.records import MICRO, Kind, Limit
from tests.unit.tenants.conftest import SickTable
from tests.unit.tenants.test_ledger import HOUR, done, entry

NOTES = sa.Table("notes", sa.MetaData(), sa.Column("text", sa.String(64)))


class NoteRider:
    """Writes a note, as a batch writes the result of a line."""

    def __init__(self, text: str, *, fails: bool = False, is_late: bool = False) -> None:
        self.text, self.fails, self.is_late, self.ends = text, fails, is_late, 0

    def may_write(self, connection: sa.Connection) -> bool:
        return not self.is_late

    def write(self, connection: sa.Connection) -> None:
        if self.is_late:
            return
        connection.execute(sa.insert(NOTES).values(text=self.text))
        if self.fails:
            raise RuntimeError("no")

    def end(self) -> None:
        self.ends += 1


@pytest.fixture
def ledger(database: Database) -> SickTable:
    NOTES.create(database.engine)
    return SickTable(database, "server-1")


def notes(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(sa.select(NOTES.c.text)).scalars())


def test_a_rider_is_written_with_the_end_of_its_row(ledger: LedgerTable, database: Database) -> None:
    one, other = entry(), entry()
    ledger.write([one, other], [])
    ledger.write([], [done(one, 5), done(other, 7)], riders={one.uid: NoteRider("one")})
    assert notes(database) == ["one"]
    ledger.write([], [done(one, 5)], riders={one.uid: NoteRider("again")})
    assert notes(database) == ["one"], "the row had already ended"
    assert ledger.differences() == []


def test_an_interrupted_row_takes_no_rider(ledger: LedgerTable, database: Database) -> None:
    one, other = entry(), entry()
    ledger.write([one, other], [])
    ledger.interrupt()
    third = entry()
    ledger.write([third], [done(one), done(third)], riders={one.uid: NoteRider("one"), third.uid: NoteRider("third")})
    assert notes(database) == ["third"]


def test_a_rider_that_fails_leaves_the_row_open(ledger: LedgerTable, database: Database) -> None:
    one = entry()
    ledger.write([one], [])
    with pytest.raises(RuntimeError):
        ledger.write([], [done(one, 5)], riders={one.uid: NoteRider("one", fails=True)})
    assert (notes(database), ledger.open_rows()) == ([], 1)


def test_an_answer_that_arrives_too_late_costs_nothing(ledger: LedgerTable, database: Database) -> None:
    late, other = replace(entry(), source=BATCH), entry()
    ledger.write([late, other], [])
    ledger.write([], [done(late, 5), done(other, 7)], riders={late.uid: NoteRider("late", is_late=True)})
    assert notes(database) == []
    assert sum(row.prompt_tokens for row in used(database, UsageFilter(0, HOUR))) == 7
    assert (ledger.open_rows(), ledger.differences()) == (0, [])


def test_only_the_lines_of_another_server_are_interrupted(ledger: LedgerTable, database: Database) -> None:
    other = LedgerTable(database, "server-2")
    line, person = replace(entry(), source=BATCH, reserved_micro=5), entry()
    other.write([line, person], [])
    with database.write() as connection:
        assert ledger.interrupt_lines(connection, "server-2") == 1
    assert (ledger.open_rows(), ledger.differences()) == (1, [])


def test_an_interrupted_attempt_at_a_line_counts_nothing(ledger: LedgerTable, database: Database) -> None:
    line = replace(entry(10.0), source=BATCH, reserved_tokens=100, reserved_micro=7, reserved_audio_ms=5)
    person = replace(entry(10.0), reserved_micro=3)
    ledger.write([line, person], [])
    assert ledger.interrupt() == 2
    sums = used(database, UsageFilter(0, HOUR))
    assert sum(one.interrupted for one in sums) == 2
    assert ledger.differences() == []
    limit = Limit("l", "team", "search", Kind.MONTH, MICRO)
    assert history_of(database, [limit], {}, 11.0).spent == {"l": 3}


def test_rates_do_not_count_lines(ledger: LedgerTable, database: Database) -> None:
    line, person = replace(entry(10.0), source=BATCH), entry(10.0)
    ledger.write([line, person], [done(line, 5), done(person, 7)])
    history = history_of(database, [], {}, 11.0)
    assert [past.used.tokens for past in history.recent] == [7]


def test_only_budgets_count_a_line() -> None:

    limiter = Limiter()
    rate = Limit("rate", "team", "search", Kind.REQUESTS, 1)
    budget = Limit("budget", "team", "search", Kind.MONTH, 10)
    limiter.replace([rate, budget], {})
    caller = Caller("search")
    lines = [limiter.admit(caller, "m", Amounts(money=5), spends_only=True) for _ in range(2)]
    with pytest.raises(Exception, match="spend per month"):
        limiter.admit(caller, "m", Amounts(money=5), spends_only=True)
    for line in lines:
        limiter.settle(line, Amounts(money=1))
    limiter.admit(caller, "m", Amounts(money=1))  # the minute's single request is still available
    with pytest.raises(Exception, match="requests per minute"):
        limiter.admit(caller, "m", Amounts(money=1))
    other = Limit("tokens", "team", "search", Kind.TOKENS, 10)
    limiter.admit(caller, "m", Amounts(tokens=50), spends_only=True)
    limiter.replace([budget, other], {})
    assert limiter.levels(caller, "m")[Kind.TOKENS].remaining == 10, (
        "a running line does not count in a new rate either"
    )


# --- the thread ------------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.001)


async def test_a_rider_ends_once_its_row_is_committed(ledger: SickTable, database: Database) -> None:
    writer = LedgerWriter(ledger)
    one, rider = entry(), NoteRider("one")
    await writer.begin(one)
    writer.end(done(one), rider)
    await writer.flush()
    assert (notes(database), rider.ends) == (["one"], 1)
    await writer.close()


async def test_a_rider_of_a_row_that_never_began_ends_unwritten(ledger: SickTable, database: Database) -> None:
    writer = LedgerWriter(ledger)
    one, rider = entry(), NoteRider("one")
    ledger.error = Unavailable("no")
    with pytest.raises(Unavailable):
        await writer.begin(one)
    writer.end(done(one), rider)
    await writer.flush()
    assert (notes(database), rider.ends, writer._dropped) == ([], 1, set())
    ledger.error = None
    await writer.close()


async def test_a_rider_of_a_row_that_begins_and_ends_while_the_database_fails_ends_unwritten(
    ledger: SickTable, database: Database
) -> None:
    writer = LedgerWriter(ledger)
    one, rider = entry(), NoteRider("one")
    ledger.error = Unavailable("no")
    writer.note(one)
    writer.end(done(one), rider)
    await writer.flush()
    assert (notes(database), rider.ends) == ([], 1)
    ledger.error = None
    await writer.close()


async def test_a_rider_is_kept_while_the_database_does_not_answer(ledger: SickTable, database: Database) -> None:
    writer = LedgerWriter(ledger)
    one, rider = entry(), NoteRider("one")
    await writer.begin(one)
    ledger.error = Unavailable("no")
    writer.end(done(one), rider)
    await writer.flush()
    assert rider.ends == 0
    ledger.error = None
    await writer.close()
    assert (notes(database), rider.ends) == (["one"], 1)


async def test_on_a_full_disk_requests_continue_and_a_rider_waits(
    ledger: SickTable, database: Database, tmp_path: Path
) -> None:
    """Its row stays open, so that after a kill the line would run again and be charged once."""
    journal = Journal(tmp_path / "ledger.journal", 1 << 16)
    writer = LedgerWriter(ledger, journal)
    line, rider = entry(), NoteRider("one")
    await writer.begin(line)
    ledger.error = Unavailable("full", code="disk_full")
    writer.end(done(line, 5), rider)
    person = entry()
    await writer.begin(person)
    writer.end(done(person, 7))
    await writer.flush()
    assert rider.ends == 0
    assert line.uid not in [one.entry.uid for one in journal.ended]
    assert ledger.open_rows() == 1
    ledger.error = None
    while rider.ends == 0:
        await asyncio.sleep(0.001)
    await writer.close()
    assert notes(database) == ["one"]
    assert (ledger.open_rows(), ledger.differences()) == (0, [])
    assert sum(row.prompt_tokens for row in used(database, UsageFilter(0, HOUR))) == 12
