"""Queries that several tables share."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from batches.storage.tables import RUNNERS
from registry.storage.database import Database

T = TypeVar("T")
_CLOSED = sa.select(RUNNERS.c.closed).where(RUNNERS.c.epoch == sa.bindparam("its_epoch")).with_for_update(read=True)


def is_open(connection: sa.Connection, epoch: int) -> bool:
    """Whether a server's epoch is open; it then stays open until this transaction ends."""
    row = connection.execute(_CLOSED, {"its_epoch": epoch}).one_or_none()
    return row is not None and row.closed is None


def find(database: Database, query: "sa.Select[Any]", convert: Callable[[sa.Row[Any]], T]) -> T | None:
    """Return the record of a query, or None if there is none."""
    return next(iter(find_all(database, query, convert)), None)


def find_all(database: Database, query: "sa.Select[Any]", convert: Callable[[sa.Row[Any]], T]) -> list[T]:
    with database.read() as connection:
        return [convert(row) for row in connection.execute(query)]


def page(
    database: Database,
    table: sa.Table,
    convert: Callable[[sa.Row[Any]], T],
    where: Sequence[sa.ColumnElement[bool]],
    team: str,
    after: str | None,
    limit: int,
    *,
    newest: bool = True,
) -> list[T] | None:
    """Return a page of a team's records in order of creation: those that follow the record with id `after`.

    Returns None if the team has no such record. newest: newest first.
    """
    order = sa.tuple_(table.c.created, table.c.id)
    query, columns = sa.select(table).where(*where), (table.c.created, table.c.id)
    query = query.order_by(*(column.desc() if newest else column for column in columns)).limit(limit)
    with database.read() as connection:
        if after is not None:
            last = sa.select(*columns).where(table.c.id == after, table.c.team == team)
            row = connection.execute(last).one_or_none()
            if row is None:
                return None
            mark = sa.tuple_(sa.literal(row.created, sa.Double), sa.literal(row.id, sa.String))
            query = query.where(order < mark if newest else order > mark)
        return [convert(one) for one in connection.execute(query)]


def take_turns(connection: sa.Connection, team: str, subject: str) -> None:
    """Serialise a team's calls about the same subject, such as an Idempotency-Key. SQLite serialises all writers."""
    if connection.dialect.name != "sqlite":
        key = sa.func.hashtext(f"{team} {subject}")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext("batches"), key)))
