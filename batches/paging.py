"""Pages of a team's rows, in the order of their creation."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


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
    """Rows that follow the row with the id `after`; None: the team has no such row.

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
