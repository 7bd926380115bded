"""Blocks of limits in the fleet's PostgreSQL, taken in one statement, in windows of its clock.

Budgets also have a row for each server, so that a killed server can later give back what it had not spent:

    granted to all servers >= sum of the servers' rows, and a server's row >= what it has spent and may still spend

All calls block on the database; run them in a thread.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from fleet.blocks import SHARES, block_size
from fleet.membership.tables import BLOCKS, GRANTS
from registry.storage.database import Database

Period = Literal["minute", "day", "month"]
KEPT_SECONDS = 3600
"""Time for which a window's row is kept after its end."""


class Spent(NamedTuple):
    """A limit's usage before its first block, if it was created within a window."""

    window: int = 0
    amount: int = 0


class Grant(NamedTuple):
    amount: int
    """The amount taken; 0 if nothing is left."""
    window: int
    """The window's start by the database's clock, in seconds since the epoch. An id, not to be compared with clocks."""
    seconds: float
    """Seconds until the window ends."""
    granted: int
    """The amount granted to all servers, including this one."""


class BlockTable:
    """Blocks by limit id, in a database that `fleet.membership` opened.

    The limit's row serialises servers; a server's own row has one writer.

    server: id of this server's data directory.
    """

    def __init__(self, database: Database, server: str) -> None:
        self._database, self._server = database, server

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
        """Take a block of what is left in the current window. Raises Unavailable.

        Args:
            reservation: what the request needs beyond the server's block.
            nodes: number of nodes that take blocks.
            zone: time zone of days and months.
            spent: added to its window if no server has taken a block in it yet.
        """
        begin, end = window_of(period, zone, sa.func.statement_timestamp())
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
        with self._database.write_beside_others() as connection:
            row = connection.execute(returning).one()
            if period != "minute" and row[0]:
                self._note(connection, limit, row[1], row[0], end)
        return Grant(row[0], row[1], max(0.0, float(row[2])), row[3])

    def _note(
        self, connection: sa.Connection, limit: str, window: int, amount: int, end: sa.ColumnElement[float]
    ) -> None:
        """Add to this server's own row."""
        values = {
            "limit_id": limit, "window": window, "server": self._server, "amount": amount,
            "ends": sa.cast(end, sa.BigInteger),
        }  # fmt: skip
        statement = postgresql.insert(GRANTS).values(values)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["limit_id", "window", "server"], set_={"amount": GRANTS.c.amount + amount}
            )
        )

    def give_back(self, limit: str, window: int, amount: int, period: Period) -> None:
        """Give back the rest of a block. Raises Unavailable."""
        own = (GRANTS.c.limit_id == limit) & (GRANTS.c.window == window) & (GRANTS.c.server == self._server)
        less = sa.update(GRANTS).where(own, GRANTS.c.amount >= amount).values(amount=GRANTS.c.amount - amount)
        with self._database.write_beside_others() as connection:
            if period != "minute":
                _lock(connection, limit, window)
                if not connection.execute(less).rowcount:
                    return  # it was given back already
            _release(connection, limit, window, amount)

    def give_back_unspent(self, spent: Callable[[str, int], int | None]) -> Mapping[str, int]:
        """Give back what earlier runs of this server took of open budgets but did not spend.

        Call it before this run takes its first block, and once the ledger has all rows of the earlier runs.

        Args:
            spent: the most that this server may have spent of a limit in a window; None if unknown.

        Returns the amounts by limit. Raises Unavailable.
        """
        own = (GRANTS.c.server == self._server) & (GRANTS.c.amount > 0)
        with self._database.read() as connection:
            query = sa.select(GRANTS.c.limit_id, GRANTS.c.window).where(own, GRANTS.c.ends > _now())
            open_ = [(row.limit_id, row.window) for row in connection.execute(query)]
        returned = {}
        for limit, window in open_:
            if (used := spent(limit, window)) is not None and (amount := self._keep(limit, window, used)):
                returned[limit] = amount
        return returned

    def _keep(self, limit: str, window: int, most: int) -> int:
        """Keep at most `most` in a window. Returns how much was given back."""
        own = (GRANTS.c.limit_id == limit) & (GRANTS.c.window == window) & (GRANTS.c.server == self._server)
        with self._database.write_beside_others() as connection:
            _lock(connection, limit, window)
            amount = connection.execute(sa.select(GRANTS.c.amount).where(own)).scalar()
            rest = max(0, int(amount or 0) - most)
            if rest:
                connection.execute(sa.update(GRANTS).where(own).values(amount=most))
                _release(connection, limit, window, rest)
        return rest

    def levels(self, limits: Sequence[str]) -> Mapping[str, Grant]:
        """Return what servers have taken in open windows, with `amount` 0. Raises Unavailable."""
        columns = (BLOCKS.c.limit_id, BLOCKS.c.window, BLOCKS.c.ends - _now(), BLOCKS.c.granted)
        query = sa.select(*columns).where(BLOCKS.c.limit_id.in_(limits), BLOCKS.c.ends > _now())
        with self._database.write_beside_others() as connection:
            return {row[0]: Grant(0, row[1], float(row[2]), row[3]) for row in connection.execute(query)}

    def granted(self, limit: str) -> int:
        """Return what servers have taken in the limit's newest window. Raises Unavailable."""
        query = sa.select(BLOCKS.c.granted).where(BLOCKS.c.limit_id == limit).order_by(BLOCKS.c.window.desc()).limit(1)
        with self._database.read() as connection:
            return int(connection.execute(query).scalar() or 0)

    def prune(self) -> int:
        """Delete old windows. Returns how many. Raises Unavailable."""
        with self._database.write_beside_others() as connection:
            connection.execute(sa.delete(GRANTS).where(GRANTS.c.ends < _now() - KEPT_SECONDS))
            return connection.execute(sa.delete(BLOCKS).where(BLOCKS.c.ends < _now() - KEPT_SECONDS)).rowcount


def _lock(connection: sa.Connection, limit: str, window: int) -> None:
    """Lock the limit's row before the server's own, as `take` does, to avoid deadlocks."""
    where = (BLOCKS.c.limit_id == limit) & (BLOCKS.c.window == window)
    connection.execute(sa.select(BLOCKS.c.granted).where(where).with_for_update())


def _release(connection: sa.Connection, limit: str, window: int, amount: int) -> None:
    where = (BLOCKS.c.limit_id == limit) & (BLOCKS.c.window == window)
    connection.execute(sa.update(BLOCKS).where(where).values(granted=BLOCKS.c.granted - amount))


def _now() -> sa.ColumnElement[float]:
    """Return the start time of the statement, the same in all of its parts."""
    return sa.cast(sa.func.extract("epoch", sa.func.statement_timestamp()), sa.Double)


def window_of(
    period: Period, zone: str, moment: sa.ColumnElement[Any]
) -> tuple[sa.ColumnElement[int], sa.ColumnElement[float]]:
    """Return start and end of the window with this moment, in seconds since the epoch.

    Minutes are those of UTC: a local one that comes twice, as summer time ends, would always mean the later one.
    Days and months begin with the first midnight if there are two, as in the ledger (`tenants.limits.records`).
    """
    zone = "UTC" if period == "minute" else zone
    local = sa.func.timezone(zone, moment)
    begin = sa.func.date_trunc(period, local)
    end = begin + sa.cast(f"1 {period}", postgresql.INTERVAL)
    return (
        sa.cast(sa.func.extract("epoch", _first(zone, begin)), sa.BigInteger),
        sa.cast(sa.func.extract("epoch", _first(zone, end)), sa.Double),
    )


def _first(zone: str, local: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return the first moment with this local time, of which PostgreSQL takes the last."""
    last = sa.func.timezone(zone, local)
    before = last - sa.cast("1 hour", postgresql.INTERVAL)
    return sa.case((sa.func.timezone(zone, before) == local, before), else_=last)
