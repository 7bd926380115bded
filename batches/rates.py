"""The table of rates: how fast each server ran lines of each model. Used for forecasts."""

from collections.abc import Mapping

import sqlalchemy as sa

from batches.storage.tables import RATES, RUNNERS
from batches.work.forecast import RoomRate
from registry.storage.database import Database

RECENT_SECONDS = 300.0
"""A server whose rate was measured this long before another's no longer runs the model."""


class RateTable:
    """Every call is one blocking transaction. Raises Unavailable. server: id of this server."""

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
