"""The desired replicas of a fleet, what was placed by hand, and who plans.

| a server            | the lock   | plans | it leaves when                                                   |
|---------------------|------------|-------|------------------------------------------------------------------|
| follows             | another's  | no    | the lock is free                                                 |
| leads               | its own    | yes   | its connection breaks, or another one wrote an epoch             |

The lock belongs to a connection, so that it is free as soon as PostgreSQL sees that its server is gone. The epoch
guards what the lock cannot: a leader that does not know yet that its connection has ended.

Every call waits for the database: use a thread.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import sqlalchemy as sa

from fleet.epochs import DesiredReplicas, successor
from fleet.membership.tables import DESIRED, PLACEMENTS
from registry.storage.database import Database, put, translate_errors

_ROW = 1
"""Key of the only row."""


class HandPlacement(NamedTuple):
    """A placement made by hand."""

    model: str
    replicas: int | None = None
    """None: one on each of `nodes`."""
    nodes: tuple[str, ...] = ()


class DesiredTable:
    """schema: of the database."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database, self._schema = database, schema
        self._lock: sa.Connection | None = None
        """Holds the lock of the server that plans."""

    def read(self) -> tuple[DesiredReplicas, Sequence[HandPlacement]]:
        """The list of the present epoch, and what was placed by hand. Raises Unavailable."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(PLACEMENTS).order_by(PLACEMENTS.c.model)).all()
            by_hand = [HandPlacement(row.model, row.replicas, tuple(row.nodes)) for row in rows]
            return _row(connection), by_hand

    def write(self, known: int, replicas: Mapping[str, tuple[str, ...]]) -> DesiredReplicas | None:
        """Write the next epoch; None: another server wrote one that this one does not know. Raises Unavailable."""
        with self._database.write() as connection:
            row = successor(_row(connection), known, replicas)
            if row is not None:
                listed = {model: list(nodes) for model, nodes in replicas.items()}
                put(connection, DESIRED, {"id": _ROW, "epoch": row.epoch, "replicas": listed})
        return row

    def place(self, placement: HandPlacement) -> None:
        """Place a model by hand from now on. Raises Unavailable."""
        with self._database.write() as connection:
            put(connection, PLACEMENTS, placement._asdict())

    def release(self, model: str) -> bool:
        """Leave a model to the fleet again. False: it was not placed by hand. Raises Unavailable."""
        with self._database.write() as connection:
            return connection.execute(sa.delete(PLACEMENTS).where(PLACEMENTS.c.model == model)).rowcount > 0

    def lead(self) -> bool:
        """Whether this server plans: it has the lock, or gets it now. Raises Unavailable."""
        try:
            with translate_errors():
                if self._lock is None:
                    self._lock = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                    is_free = sa.func.pg_try_advisory_lock(self._key())
                    if not self._lock.execute(sa.select(is_free)).scalar_one():
                        self.stop_leading()
                else:
                    self._lock.execute(sa.select(1))  # raises where the connection, and so the lock, is gone
        except BaseException:
            self.stop_leading()
            raise
        return self._lock is not None

    def stop_leading(self) -> None:
        """Let another server plan."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.invalidate()  # a pooled connection would keep the lock
            lock.close()

    def _key(self) -> int:
        """A number for this fleet's lock among all of the database."""
        name = f"{self._schema} places models"
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


def _row(connection: sa.Connection) -> DesiredReplicas:
    row = connection.execute(sa.select(DESIRED.c.epoch, DESIRED.c.replicas)).one_or_none()
    if row is None:
        return DesiredReplicas(0, {})
    return DesiredReplicas(row.epoch, {model: tuple(nodes) for model, nodes in row.replicas.items()})
