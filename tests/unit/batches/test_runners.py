"""Servers' runs: epochs and silence. A line is in one run at a time and ends once."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from batches.files import FileTable
from batches.lines import LineTable
from batches.records import BatchRecord, BatchState, Line, LineEnd, LineState, NewLine
from batches.runners import RunnerTable
from batches.storage.opening import prepare
from batches.storage.queries import is_open
from batches.storage.tables import BATCHES, LINES, RUNNERS
from batches.store import BatchTables
from batches.table import BatchTable
from batches.work.ends import decide
from registry.storage.database import Database
from tenants.ledger.rows import BATCH as SOURCE
from tenants.ledger.table import LedgerTable
from tenants.storage.opening import open_tables
from tests.unit.batches.conftest import BATCH, FILE
from tests.unit.tenants.test_ledger import entry

INTERLEAVINGS, STEPS, LINES_OF_ONE = int(os.environ.get("BATCHES_LONG", "40")), 30, 6


def test_a_silent_server_loses_its_lines(
    database: Database, tables: BatchTables, start: Callable[..., BatchRecord]
) -> None:
    """Its rows of the ledger end, too, and its later answers are not written."""
    start("m", "m")
    other, ledger = RunnerTable(database, "server-b"), LedgerTable(database, "server-b")
    mine, _ = tables.runners.open()
    theirs, _ = other.open()
    [line] = tables.lines.claim(theirs, BATCH.id, "m", 1, 12.0)
    row = replace(entry(), source=SOURCE, reserved_micro=5)
    ledger.write([row], [])
    assert tables.runners.close_silent() == []
    assert other.beat(theirs)
    with database.write() as connection:
        connection.execute(sa.update(RUNNERS).values(seen=RUNNERS.c.seen - 31.0))
    assert tables.runners.beat(mine)
    assert other.beat(theirs), "it was back in time"
    with database.write() as connection:
        connection.execute(sa.update(RUNNERS).where(RUNNERS.c.epoch == theirs).values(seen=RUNNERS.c.seen - 31.0))
    assert tables.runners.close_silent() == ["server-b"]
    assert tables.runners.close_silent() == []
    assert not other.beat(theirs)
    assert (ledger.open_rows(), ledger.differences()) == (0, [])
    with database.read() as connection:
        assert is_open(connection, mine)
        assert not is_open(connection, theirs)
    assert not tables.lines.end(theirs, line, decide(line, LineEnd(200), 13.0), 13.0)
    assert [one.number for one in tables.lines.claim(mine, BATCH.id, "m", 2, 14.0)] == [0, 1]


def test_a_dead_servers_validations_begin_again(
    database: Database, tables: BatchTables, start: Callable[..., BatchRecord]
) -> None:
    """Its lines so far are removed, and what it stores later is refused."""
    start("m")
    new = [NewLine(0, "a", "m", 0, 1), NewLine(1, "b", "m", 1, 1)]
    other = RunnerTable(database, "server-b")
    for id_, server, created in (("theirs", "server-b", 20.0), ("mine", "server-a", 20.0), ("now", "server-b", 1e11)):
        assert tables.batches.create(replace(BATCH, id=id_, validator=server, created=created))
    assert tables.lines.add("theirs", new[:1], "server-b")
    theirs, _ = other.open()
    assert tables.runners.take_validations() == ["mine"]
    other.close(theirs)
    assert sorted(tables.runners.take_validations()) == ["mine", "theirs"], (
        "the third is of a server that may still get an epoch"
    )
    assert not tables.lines.add("theirs", new[1:], "server-b")
    assert not tables.lines.begin("theirs", "server-b")
    assert not tables.batches.start("theirs", 30.0, validator="server-b")
    assert not tables.batches.fail("theirs", 30.0, [], validator="server-b")
    assert tables.lines.begin("theirs", "server-a")
    assert tables.lines.add("theirs", new, "server-a")
    assert tables.batches.start("theirs", 30.0, validator="server-a")
    batch = tables.batches.get("theirs")
    assert batch is not None
    assert batch.counts.total == 2


def _without_sync(connection: Any, *_: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")  # these databases need not survive a crash of the machine


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Database]:
    database = open_tables(tmp_path)
    prepare(database)
    sa.event.listen(database.engine, "checkout", _without_sync)
    yield database
    database.close()


@pytest.mark.timeout(300 + INTERLEAVINGS)
def test_in_any_interleaving_a_line_is_in_one_run_and_ends_once(local: Database) -> None:
    """Random interleavings of claim, end, return, crash, take-over, stop, cancel and expiry by two servers.

    BATCHES_LONG=N plays N of them instead of a few.
    """
    for seed in range(INTERLEAVINGS):
        _play(local, seed)


def _play(local: Database, seed: int) -> None:
    chance = random.Random(seed)
    lines, files, batches = LineTable(local), FileTable(local), BatchTable(local)
    servers = {name: RunnerTable(local, name) for name in ("server-a", "server-b")}
    if files.get(FILE.id, FILE.team) is None:
        files.create(FILE)
    epochs = {name: table.open()[0] for name, table in servers.items()}
    owned: dict[int, list[Line]] = {epoch: [] for epoch in epochs.values()}
    ends, now = Counter[tuple[str, int]](), 100.0
    for _ in range(STEPS):
        now += 1.0
        name = chance.choice(list(servers))
        epoch = epochs[name]
        open_batches = [one for one in batches.unfinished() if one.state is BatchState.IN_PROGRESS]
        step = chance.choices(
            ("claim", "end", "return", "late", "crash", "take over", "cancel", "expire", "drop"),
            (8, 16, 3, 2, 1, 1, 0.2, 0.2, 4),
        )[0]
        if not open_batches:
            batch = replace(BATCH, id=f"batch_{seed}_{now:.0f}", created=now)
            assert batches.create(batch) is not None
            lines.add(batch.id, [NewLine(number, str(number), "m", 0, 1) for number in range(LINES_OF_ONE)])
            batches.start(batch.id, now)
        elif step == "claim":
            claimed = lines.claim(epoch, chance.choice(open_batches).id, "m", chance.randrange(1, 6), now)
            with local.read() as connection:
                assert not claimed or is_open(connection, epoch)
            owned[epoch] += claimed
        elif step in ("end", "return") and owned[epoch]:
            line = owned[epoch].pop(chance.randrange(len(owned[epoch])))
            end = LineEnd(200, body=b"{}") if step == "end" else LineEnd(None)
            written = lines.end(epoch, line, decide(line, end, now), now)
            ends[line.batch, line.number] += written and step == "end"
            with local.read() as connection:
                assert written is is_open(connection, epoch)
        elif step == "late":  # an earlier run of a server writes again
            old = chance.choice(list(owned))
            if old not in epochs.values() and owned[old]:
                line = owned[old].pop()
                assert not lines.end(old, line, decide(line, LineEnd(200, body=b"{}"), now), now)
        elif step == "crash":
            epochs[name] = servers[name].open()[0]
            owned[epochs[name]] = []
        elif step == "take over":
            servers[name].close_silent(-1.0)  # the other one, even if it is alive
        elif step == "cancel":
            batches.cancel(chance.choice(open_batches).id, now)
        elif step == "expire":
            lines.drop(chance.choice(open_batches).id, LineState.EXPIRED, now)
        else:
            for batch in batches.unfinished():
                if batch.state is BatchState.CANCELLING:
                    lines.drop(batch.id, LineState.CANCELLED, now)
        _check(local, epochs, owned)
    assert max(ends.values(), default=0) <= 1
    mine = LINES.c.batch.like(f"batch_{seed}_%")
    with local.write() as connection:
        ended = sa.select(LINES.c.batch, LINES.c.number).where(mine, LINES.c.state == LineState.ENDED.value)
        assert {tuple(row) for row in connection.execute(ended)} == set(+ends)
        for one in batches.unfinished():
            assert one.counts.left > 0
        connection.execute(sa.delete(LINES).where(mine))
        connection.execute(sa.delete(BATCHES))


def _check(database: Database, epochs: dict[str, int], owned: dict[int, list[Line]]) -> None:
    """Check that running lines are those of open epochs, each at the server of its epoch."""
    with database.read() as connection:
        query = sa.select(LINES.c.batch, LINES.c.number, LINES.c.epoch).where(LINES.c.state == LineState.RUNNING.value)
        running = {(row.batch, row.number): row.epoch for row in connection.execute(query)}
        opened = set(connection.execute(sa.select(RUNNERS.c.epoch).where(RUNNERS.c.closed.is_(None))).scalars())
    assert set(running.values()) <= opened <= set(epochs.values())
    for epoch in opened:
        mine = {(line.batch, line.number) for line in owned[epoch]}
        assert mine == {key for key, of in running.items() if of == epoch}
