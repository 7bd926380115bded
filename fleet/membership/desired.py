"""The desired replicas of a fleet, placements by hand, and the server that plans.

| a server | holds the lock | plans | until                                                   |
|----------|----------------|-------|---------------------------------------------------------|
| follows  | no             | no    | the lock is free                                        |
| leads    | yes            | yes   | its connection breaks, or another server wrote an epoch |

The lock belongs to a connection, so it is freed as soon as PostgreSQL notices that its server is gone, or once that
server has stood still for SILENT_SECONDS. The epoch covers the remaining case: a leader that does not know yet that its
connection has ended.

All calls block on the database; run them in a thread.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import sqlalchemy as sa

from fleet.epochs import DesiredReplicas, successor
from fleet.membership.tables import DESIRED, PLACEMENTS
from registry.storage.database import Database, put, translate_errors

SILENT_SECONDS = 20
"""Seconds without a query of the leader after which PostgreSQL ends its connection. It asks every second."""
_ROW = 1
"""Key of the only row."""


class HandPlacement(NamedTuple):
    model: str
    replicas: int | None = None
    """None for one on each of `nodes`."""
    nodes: tuple[str, ...] = ()


class DesiredTable:
    """The desired replicas in the database. schema: the fleet's."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database, self._schema = database, schema
        self._lock: sa.Connection | None = None
        """The connection that holds the lock while this server plans."""

    def read(self) -> tuple[DesiredReplicas, Sequence[HandPlacement]]:
        """Return the newest epoch, and the placements by hand. Raises Unavailable."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(PLACEMENTS).order_by(PLACEMENTS.c.model)).all()
            by_hand = [HandPlacement(row.model, row.replicas, tuple(row.nodes)) for row in rows]
            return _row(connection), by_hand

    def write(self, known: int, replicas: Mapping[str, tuple[str, ...]]) -> DesiredReplicas | None:
        """Write the next epoch. Returns None if another server wrote one since `known`. Raises Unavailable."""
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
        """Let the fleet place a model again. Returns False if it was not placed by hand. Raises Unavailable."""
        with self._database.write() as connection:
            return connection.execute(sa.delete(PLACEMENTS).where(PLACEMENTS.c.model == model)).rowcount > 0

    def lead(self) -> bool:
        """Return whether this server plans, because it has the lock or gets it now. Raises Unavailable."""
        try:
            with translate_errors():
                if self._lock is None:
                    self._lock = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                    is_free = sa.func.pg_try_advisory_lock(self._key())
                    if not self._lock.execute(sa.select(is_free)).scalar_one():
                        self._lock.close()  # it holds nothing, and the pool keeps it for the next call
                        self._lock = None
                    else:
                        self._lock.execute(sa.text(f"SET idle_session_timeout = '{SILENT_SECONDS}s'"))
                else:
                    self._lock.execute(sa.select(1))  # raises if the connection, and so the lock, is gone
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
        """Return a number for this fleet's lock."""
        name = f"{self._schema} places models"
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


def _row(connection: sa.Connection) -> DesiredReplicas:
    row = connection.execute(sa.select(DESIRED.c.epoch, DESIRED.c.replicas)).one_or_none()
    if row is None:
        return DesiredReplicas(0, {})
    return DesiredReplicas(row.epoch, {model: tuple(nodes) for model, nodes in row.replicas.items()})
