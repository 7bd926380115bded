"""How SQLite finds the rows of a query, whatever the time that it takes."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import sqlalchemy as sa

from registry.storage.database import Database


def plans(database: Database, work: Callable[[], object]) -> list[str]:
    """Return the plans of the SELECT statements that `work` executes, such as `SEARCH hours USING INDEX ...`."""
    queries: list[tuple[str, Any]] = []

    def watch(_connection: object, _cursor: object, statement: str, values: Any, *_: object) -> None:
        if statement.startswith("SELECT"):
            queries.append((statement, values))

    sa.event.listen(database.engine, "before_cursor_execute", watch)
    work()
    sa.event.remove(database.engine, "before_cursor_execute", watch)
    with closing(database.engine.raw_connection()) as connection:
        cursor = connection.cursor()
        return [
            "; ".join(row[3] for row in cursor.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall())
            for statement, values in queries
        ]
