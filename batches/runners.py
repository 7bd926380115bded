"""Runs of servers that work on lines. A run claims lines under its epoch, and writes only while that is open.

| event                                     | then                                                              |
|-------------------------------------------|-------------------------------------------------------------------|
| a server starts                           | its earlier epochs are closed, their lines wait again; a new one  |
| a server stops                            | its epoch is closed, its lines wait again                         |
| an epoch is closed under a running server | it writes nothing any more, and ends its calls                    |

Epochs count up in the database, and depend on no clock.
"""

import sqlalchemy as sa

from batches.records import LineState
from batches.storage.tables import LINES, RUNNERS
from registry.storage.database import Database


class RunnerTable:
    """Every call is one blocking transaction. Raises Unavailable. server: id of this server."""

    def __init__(self, database: Database, server: str) -> None:
        self._database, self._server = database, server

    def open(self, now: float, *, alone: bool = False) -> tuple[int, int]:
        """Close earlier epochs of this server and open the next one. Returns it, and how many lines came back.

        alone: no other server has the database, so epochs of any other name are of a restored backup.
        """
        whose = sa.true() if alone else RUNNERS.c.server == self._server
        with self._database.write() as connection:
            query = sa.select(RUNNERS.c.epoch).where(whose, RUNNERS.c.closed.is_(None)).with_for_update()
            returned = sum(_close(connection, epoch, now) for epoch in list(connection.execute(query).scalars()))
            new = sa.insert(RUNNERS).values(server=self._server, started=now, seen=now)
            epoch = connection.execute(new.returning(RUNNERS.c.epoch)).scalar_one()
        return epoch, returned

    def close(self, epoch: int, now: float) -> int:
        """Close an epoch. Returns how many lines came back."""
        with self._database.write() as connection:
            return _close(connection, epoch, now)


def _close(connection: sa.Connection, epoch: int, now: float) -> int:
    connection.execute(sa.update(RUNNERS).where(RUNNERS.c.epoch == epoch).values(closed=now, seen=now))
    back = sa.update(LINES).where(LINES.c.epoch == epoch, LINES.c.state == LineState.RUNNING.value)
    return connection.execute(back.values(state=LineState.WAITING.value, epoch=None)).rowcount
