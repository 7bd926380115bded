"""A statement that is compiled once, for rows that are written all the time."""

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa


class PreparedStatement:
    """SQLAlchemy's way for many rows looks at each value of each; this hands them to the driver as they are.

    Args:
        names: of the statement's parameters, in the order in which a row's values come. None of them may be of a type
            that SQLAlchemy has to convert.
    """

    def __init__(self, statement: sa.Insert | sa.Update, dialect: sa.Dialect, names: Sequence[str]) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=list(names))
        self.sql = str(compiled)
        self._row = _by_position(compiled.positiontup, names) if compiled.positional else _by_name(names)

    def run(self, connection: sa.Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Returns how many rows of the table it made or changed."""
        return connection.exec_driver_sql(self.sql, [self._row(row) for row in rows]).rowcount if rows else 0


def _by_position(order: Sequence[str] | None, names: Sequence[str]) -> Callable[[tuple[Any, ...]], Any]:
    positions = [names.index(name) for name in order or ()]
    if positions == list(range(len(names))):
        return tuple
    return lambda row: tuple([row[position] for position in positions])


def _by_name(names: Sequence[str]) -> Callable[[tuple[Any, ...]], Any]:
    return lambda row: dict(zip(names, row, strict=True))
