"""Servers' shares of limits on requests at once, in the fleet's PostgreSQL.

All calls block on the database and raise Unavailable; run them in a thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from fleet.blocks import block_size
from fleet.membership.tables import AT_ONCE
from registry.storage.database import Database


class Share(NamedTuple):
    own: int
    """Requests that this server may run at once."""
    all: int
    """Requests that all servers together may run at once."""


class AtOnceTable:
    """Shares by limit id. server: id of this server's data directory."""

    def __init__(self, database: Database, server: str) -> None:
        self._database, self._server = database, server

    def take(self, limit: str, capacity: int, amount: int, nodes: int) -> Share:
        """Raise this server's share to `amount`, and by some more if much is left."""
        with self._alone(limit) as connection:
            own, others = self._read(connection, limit)
            block = block_size(capacity, own + others, amount - own, nodes) if amount > own else 0
            self._write(connection, limit, own + block)
        return Share(own + block, own + block + others)

    def give_back(self, limit: str, amount: int) -> Share:
        """Reduce this server's share to at most `amount`."""
        with self._alone(limit) as connection:
            own, others = self._read(connection, limit)
            if own > amount:
                self._write(connection, limit, amount)
        return Share(min(own, amount), min(own, amount) + others)

    def free(self, server: str) -> None:
        """Free the share of a dead server."""
        with self._database.write_beside_others() as connection:
            connection.execute(sa.delete(AT_ONCE).where(AT_ONCE.c.server == server))

    def _read(self, connection: sa.Connection, limit: str) -> Share:
        """Return this server's share and the sum of the others'."""
        query = sa.select(AT_ONCE.c.server, AT_ONCE.c.amount).where(AT_ONCE.c.limit_id == limit)
        shares = {row.server: int(row.amount) for row in connection.execute(query)}
        own = shares.pop(self._server, 0)
        return Share(own, sum(shares.values()))

    def _write(self, connection: sa.Connection, limit: str, amount: int) -> None:
        values = {"limit_id": limit, "server": self._server, "amount": amount}
        statement = postgresql.insert(AT_ONCE).values(values)
        statement = statement.on_conflict_do_update(index_elements=["limit_id", "server"], set_={"amount": amount})
        connection.execute(statement)

    @contextmanager
    def _alone(self, limit: str) -> Iterator[sa.Connection]:
        """Open a transaction in which no other server changes its share of a limit."""
        name = sa.func.concat(sa.func.current_schema(), " at once ", limit)
        with self._database.write_beside_others() as connection:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(name))))
            yield connection
