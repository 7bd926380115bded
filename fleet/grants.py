"""Blocks of limits in the fleet's PostgreSQL: taken by one statement, in windows by its clock.

Every call waits for the database: use a thread.
"""

from typing import Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from fleet.blocks import SHARES, block_size
from fleet.membership.tables import BLOCKS
from registry.storage.database import Database

Period = Literal["minute", "day", "month"]
LONGEST = 40 * 86_400
"""Seconds after which no window is under way any more."""


class Grant(NamedTuple):
    amount: int
    """0: nothing is left."""
    window: int
    """When it began, in seconds since the epoch by the database's clock: its name, not a time to compare."""
    seconds: float
    """Until the window ends."""


class BlockTable:
    """Limits by their ids; for a database of a fleet that `fleet.membership` opened."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, limit: str, capacity: int, reservation: int, nodes: int, period: Period, zone: str = "UTC") -> Grant:
        """Take a block of what is left in the present window. Raises Unavailable.

        Args:
            reservation: of the request that needs it, beside what this server has.
            nodes: that take blocks.
            zone: in which days and months begin.
        """
        begin, end = _window(period, zone)
        left = sa.func.greatest(0, sa.literal(capacity, sa.BigInteger) - BLOCKS.c.granted)
        share = sa.func.least(capacity // (SHARES * nodes), left // (2 * nodes))
        block = sa.func.least(left, sa.func.greatest(reservation, share))
        first = block_size(capacity, 0, reservation, nodes)
        values = {"limit_id": limit, "window": begin, "capacity": capacity, "granted": first, "taken": first}
        statement = postgresql.insert(BLOCKS).values(values)
        statement = statement.on_conflict_do_update(
            index_elements=["limit_id", "window"],
            set_={"capacity": capacity, "granted": BLOCKS.c.granted + block, "taken": block},
        )
        now = sa.func.extract("epoch", sa.func.statement_timestamp())
        with self._database.write() as connection:
            row = connection.execute(statement.returning(BLOCKS.c.taken, BLOCKS.c.window, end - now)).one()
        return Grant(row[0], row[1], max(0.0, float(row[2])))

    def give_back(self, limit: str, window: int, amount: int) -> None:
        """Let others have what is left of a block. Raises Unavailable."""
        where = (BLOCKS.c.limit_id == limit) & (BLOCKS.c.window == window)
        with self._database.write() as connection:
            connection.execute(sa.update(BLOCKS).where(where).values(granted=BLOCKS.c.granted - amount))

    def granted(self, limit: str) -> int:
        """What servers have taken in the limit's newest window. Raises Unavailable."""
        query = sa.select(BLOCKS.c.granted).where(BLOCKS.c.limit_id == limit).order_by(BLOCKS.c.window.desc()).limit(1)
        with self._database.read() as connection:
            return int(connection.execute(query).scalar() or 0)

    def prune(self) -> int:
        """Remove windows that are over for long. Returns how many. Raises Unavailable."""
        now = sa.func.extract("epoch", sa.func.statement_timestamp())
        with self._database.write() as connection:
            return connection.execute(sa.delete(BLOCKS).where(BLOCKS.c.window < now - LONGEST)).rowcount


def _window(period: Period, zone: str) -> tuple[sa.ColumnElement[int], sa.ColumnElement[float]]:
    """Begin and end of the present window, in seconds since the epoch.

    By the time at which the statement begins, which is one for all of its parts.
    """
    local = sa.func.timezone(zone, sa.func.statement_timestamp())
    begin = sa.func.date_trunc(period, local)
    end = begin + sa.cast(f"1 {period}", postgresql.INTERVAL)
    return (
        sa.cast(sa.func.extract("epoch", sa.func.timezone(zone, begin)), sa.BigInteger),
        sa.cast(sa.func.extract("epoch", sa.func.timezone(zone, end)), sa.Double),
    )
