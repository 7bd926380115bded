"""Blocks of limits in the fleet's PostgreSQL: taken by one statement, in windows by its clock.

Every call waits for the database: use a thread.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from fleet.blocks import SHARES, block_size
from fleet.membership.tables import BLOCKS
from registry.storage.database import Database, translate_errors

Period = Literal["minute", "day", "month"]
KEPT_SECONDS = 3600
"""A window's row stays for so long after its end."""


class Spent(NamedTuple):
    """A limit's usage before its first block, if it was set in mid-window."""

    window: int = 0
    amount: int = 0


class Grant(NamedTuple):
    amount: int
    """0: nothing is left."""
    window: int
    """The window's beginning in seconds since the epoch, by the database's clock: a name, not a time to compare."""
    seconds: float
    """Seconds until the window ends."""
    granted: int
    """The amount granted to all servers, with this."""


class BlockTable:
    """Limits by their ids; for a database of a fleet that `fleet.membership` opened."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(
        self,
        limit: str,
        capacity: int,
        reservation: int,
        nodes: int,
        period: Period,
        zone: str = "UTC",
        spent: Spent | None = None,
    ) -> Grant:
        """Take a block of what is left in the present window. Raises Unavailable.

        Args:
            reservation: of the request that needs it, beside what this server has.
            nodes: that take blocks.
            zone: in which days and months begin.
            spent: counts in its window, if no server has taken a block of that yet.
        """
        begin, end = _window(period, zone)
        left = sa.func.greatest(0, sa.literal(capacity, sa.BigInteger) - BLOCKS.c.granted)
        share = sa.func.least(capacity // (SHARES * nodes), left // (2 * nodes))
        block = sa.func.least(left, sa.func.greatest(reservation, share))
        used = min(capacity, spent.amount) if spent is not None else 0
        since = -1 if spent is None else spent.window

        def first(granted: int) -> int:
            return block_size(capacity, granted, reservation, nodes)

        values = {
            "limit_id": limit, "window": begin, "capacity": capacity, "ends": sa.cast(end, sa.BigInteger),
            "granted": sa.case((begin == since, used + first(used)), else_=first(0)),
            "taken": sa.case((begin == since, first(used)), else_=first(0)),
        }  # fmt: skip
        statement = postgresql.insert(BLOCKS).values(values)
        statement = statement.on_conflict_do_update(
            index_elements=["limit_id", "window"],
            set_={"capacity": capacity, "granted": BLOCKS.c.granted + block, "taken": block},
        )
        returning = statement.returning(BLOCKS.c.taken, BLOCKS.c.window, end - _now(), BLOCKS.c.granted)
        with self._statement() as connection:
            row = connection.execute(returning).one()
        return Grant(row[0], row[1], max(0.0, float(row[2])), row[3])

    def give_back(self, limit: str, window: int, amount: int) -> None:
        """Let others have what is left of a block. Raises Unavailable."""
        where = (BLOCKS.c.limit_id == limit) & (BLOCKS.c.window == window)
        with self._statement() as connection:
            connection.execute(sa.update(BLOCKS).where(where).values(granted=BLOCKS.c.granted - amount))

    def levels(self, limits: Sequence[str]) -> Mapping[str, Grant]:
        """The amounts that servers have taken in open windows; `amount` is 0. Raises Unavailable."""
        columns = (BLOCKS.c.limit_id, BLOCKS.c.window, BLOCKS.c.ends - _now(), BLOCKS.c.granted)
        query = sa.select(*columns).where(BLOCKS.c.limit_id.in_(limits), BLOCKS.c.ends > _now())
        with self._statement() as connection:
            return {row[0]: Grant(0, row[1], float(row[2]), row[3]) for row in connection.execute(query)}

    def granted(self, limit: str) -> int:
        """The amount that servers have taken in the limit's newest window. Raises Unavailable."""
        query = sa.select(BLOCKS.c.granted).where(BLOCKS.c.limit_id == limit).order_by(BLOCKS.c.window.desc()).limit(1)
        with self._database.read() as connection:
            return int(connection.execute(query).scalar() or 0)

    def prune(self) -> int:
        """Remove windows that are over. Returns how many. Raises Unavailable."""
        with self._statement() as connection:
            return connection.execute(sa.delete(BLOCKS).where(BLOCKS.c.ends < _now() - KEPT_SECONDS)).rowcount

    @contextmanager
    def _statement(self) -> Iterator[sa.Connection]:
        """A transaction of one statement. Its row keeps it apart from others: it waits for no other writer."""
        with translate_errors(), self._database.engine.begin() as connection:
            yield connection


def _now() -> sa.ColumnElement[float]:
    """The time at which the statement begins: one for all of its parts."""
    return sa.cast(sa.func.extract("epoch", sa.func.statement_timestamp()), sa.Double)


def _window(period: Period, zone: str) -> tuple[sa.ColumnElement[int], sa.ColumnElement[float]]:
    """Begin and end of the present window, in seconds since the epoch."""
    local = sa.func.timezone(zone, sa.func.statement_timestamp())
    begin = sa.func.date_trunc(period, local)
    end = begin + sa.cast(f"1 {period}", postgresql.INTERVAL)
    return (
        sa.cast(sa.func.extract("epoch", sa.func.timezone(zone, begin)), sa.BigInteger),
        sa.cast(sa.func.extract("epoch", sa.func.timezone(zone, end)), sa.Double),
    )
