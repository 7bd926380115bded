"""Runs of servers that execute lines. A run claims lines under its epoch, and writes only while the epoch is open.

| event                                       | effect                                                           |
|---------------------------------------------|------------------------------------------------------------------|
| a server starts                             | closes its earlier epochs; their lines wait again; opens a new   |
|                                             | epoch                                                            |
| a server stops                              | closes its epoch; its lines wait again                           |
| another server finds it silent              | in one transaction, closes its epoch, makes its lines wait again |
|                                             | and ends their ledger rows as interrupted; then validates anew   |
|                                             | the batches that it was validating                               |
| a server finds its epoch closed             | ends its calls, and opens a new epoch                            |

Epochs are numbers from the database and depend on no clock. Silence is measured with the database's clock.
Forecasts use the rates at which servers ran lines.
"""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from batches.callbacks.outbox import give_back
from batches.records import BatchState, LineState
from batches.storage.tables import BATCHES, LINES, RATES, RUNNERS
from batches.work.forecast import RoomRate
from registry.storage.database import Database
from tenants.ledger.table import LedgerTable

SILENT_SECONDS = 30.0
"""A runner that has been silent for this long is considered dead."""


class RunnerTable:
    """Every call is one blocking transaction. Raises Unavailable. server: id of this server."""

    def __init__(self, database: Database, server: str) -> None:
        self._database, self.server = database, server
        self._ledger = LedgerTable(database, server)
        self._now: sa.ColumnElement[float] = (
            sa.literal_column("(julianday('now') - 2440587.5) * 86400.0", sa.Double)
            if database.is_sqlite
            else sa.literal_column("EXTRACT(EPOCH FROM clock_timestamp())::double precision", sa.Double)
        )

    def open(self, *, alone: bool = False) -> tuple[int, int]:
        """Close earlier epochs of this server and open the next. Returns it, and how many lines were returned.

        Opening the ledger has already ended the epochs' ledger rows. alone: no other server uses the database, so
        epochs of other servers come from a restored backup.
        """
        whose = sa.true() if alone else RUNNERS.c.server == self.server
        with self._database.write() as connection:
            query = sa.select(RUNNERS.c.epoch).where(whose, RUNNERS.c.closed.is_(None)).with_for_update()
            returned = sum(self._close(connection, epoch) for epoch in list(connection.execute(query).scalars()))
            new = sa.insert(RUNNERS).values(server=self.server, started=self._now, seen=self._now)
            epoch = connection.execute(new.returning(RUNNERS.c.epoch)).scalar_one()
        return epoch, returned

    def close(self, epoch: int) -> int:
        """Close an epoch of this server. Returns how many lines were returned."""
        with self._database.write() as connection:
            return self._close(connection, epoch)

    def beat(self, epoch: int) -> bool:
        """Record that this server is alive. Returns False if another server has closed its epoch."""
        query = sa.update(RUNNERS).where(RUNNERS.c.epoch == epoch, RUNNERS.c.closed.is_(None))
        with self._database.write() as connection:
            return connection.execute(query.values(seen=self._now)).rowcount > 0

    def take_validations(self) -> Sequence[str]:
        """Take over batches to validate, from this server and from servers without an open epoch. Returns their ids.

        A server may have a batch for SILENT_SECONDS before it has an epoch.
        """
        works = sa.exists().where(RUNNERS.c.server == BATCHES.c.validator, RUNNERS.c.closed.is_(None))
        left = sa.and_(~works, BATCHES.c.created < self._now - SILENT_SECONDS)
        query = sa.update(BATCHES).where(
            BATCHES.c.state == BatchState.VALIDATING.value, (BATCHES.c.validator == self.server) | left
        )
        with self._database.write() as connection:
            return list(connection.execute(query.values(validator=self.server).returning(BATCHES.c.id)).scalars())

    def close_silent(self, seconds: float = SILENT_SECONDS) -> Sequence[str]:
        """Close the epochs of other servers that are silent. Returns their ids."""
        silent = (
            sa.select(RUNNERS.c.epoch, RUNNERS.c.server)
            .where(RUNNERS.c.closed.is_(None), RUNNERS.c.server != self.server, RUNNERS.c.seen < self._now - seconds)
            .with_for_update(skip_locked=True)
        )
        with self._database.write() as connection:
            rows = connection.execute(silent).all()
            for row in rows:
                self._close(connection, row.epoch)
                self._ledger.interrupt_lines(connection, row.server)
        return [row.server for row in rows]

    def _close(self, connection: sa.Connection, epoch: int) -> int:
        """Close an epoch. Locks the runner's row before any row of the ledger, like `LedgerTable.write`."""
        closed = sa.update(RUNNERS).where(RUNNERS.c.epoch == epoch, RUNNERS.c.closed.is_(None))
        connection.execute(closed.values(closed=self._now))
        back = sa.update(LINES).where(LINES.c.epoch == epoch, LINES.c.state == LineState.RUNNING.value)
        give_back(connection, epoch)
        return connection.execute(back.values(state=LineState.WAITING.value, epoch=None)).rowcount


RECENT_SECONDS = 300.0
"""A server whose rate was measured this long before another's no longer runs the model."""


class RateTable:
    """How fast each server ran lines of each model. Every call is one blocking transaction. Raises Unavailable.

    server: id of this server.
    """

    def __init__(self, database: Database, server: str) -> None:
        self._database, self._server = database, server

    def store(self, rates: Mapping[str, RoomRate], now: float) -> None:
        """Replace this server's rates of these rooms."""
        mine = RATES.c.server == self._server
        rows = [
            {
                "server": self._server,
                "room": room,
                "per_second": rate.per_second,
                "spread": rate.spread,
                "measured": now,
            }
            for room, rate in rates.items()
        ]
        with self._database.write() as connection:
            connection.execute(sa.delete(RATES).where(mine, RATES.c.room.in_(rates)))
            if rows:
                connection.execute(sa.insert(RATES), rows)

    def all(self) -> Mapping[str, RoomRate]:
        """Return the sum of working servers' recent rates by room, or the last measured rate if no server works on it.

        Recent is relative to the last measurement: after a quiet night the sum is that of the evening.
        """
        works = sa.exists().where(RUNNERS.c.server == RATES.c.server, RUNNERS.c.closed.is_(None))
        with self._database.read() as connection:
            rows = connection.execute(sa.select(RATES, works.label("works")).order_by(RATES.c.measured)).all()
        last = {row.room: RoomRate(row.per_second, row.spread) for row in rows}
        latest = {row.room: row.measured for row in rows if row.works}
        sums: dict[str, RoomRate] = {}
        for row in rows:
            if row.works and row.measured > latest[row.room] - RECENT_SECONDS:
                before = sums.get(row.room, RoomRate(0.0, 0.0))
                sums[row.room] = RoomRate(before.per_second + row.per_second, max(before.spread, row.spread))
        return last | sums
