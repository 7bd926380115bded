"""Queries that several tables share."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from batches.storage.tables import RUNNERS

_CLOSED = sa.select(RUNNERS.c.closed).where(RUNNERS.c.epoch == sa.bindparam("its_epoch")).with_for_update(read=True)


def is_open(connection: sa.Connection, epoch: int) -> bool:
    """Whether a server's epoch is open; it then stays open until this transaction ends."""
    row = connection.execute(_CLOSED, {"its_epoch": epoch}).one_or_none()
    return row is not None and row.closed is None


def page(
    connection: sa.Connection,
    table: sa.Table,
    where: Sequence[sa.ColumnElement[bool]],
    team: str,
    after: str | None,
    limit: int,
    *,
    newest: bool = True,
) -> Sequence[sa.Row[Any]] | None:
    """A page of a team's rows, in the order of their creation: those that follow the row with the id `after`.

    None: the team has no such row.

    newest: the newest rows come first.
    """
    order = sa.tuple_(table.c.created, table.c.id)
    query = sa.select(table).where(*where)
    if after is not None:
        last = sa.select(table.c.created, table.c.id).where(table.c.id == after, table.c.team == team)
        row = connection.execute(last).one_or_none()
        if row is None:
            return None
        mark = sa.tuple_(sa.literal(row.created, sa.Double), sa.literal(row.id, sa.String))
        query = query.where(order < mark if newest else order > mark)
    columns = (table.c.created, table.c.id)
    query = query.order_by(*(column.desc() if newest else column for column in columns)).limit(limit)
    return connection.execute(query).all()


def lock_repeats(connection: sa.Connection, team: str, idempotency: str) -> None:
    """Let calls with the same Idempotency-Key come one after the other; on SQLite all writers do."""
    if connection.dialect.name != "sqlite":
        key = sa.func.hashtext(f"{team} {idempotency}")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext("batches"), key)))
