"""The number of the last change of shared names, and which table it changed.

| the row holds         | a change                                            | a look             |
|-----------------------|-----------------------------------------------------|--------------------|
| the number known here | sets the next one, and notifies all servers         | nothing is new     |
| a higher number       | the same; the next look reads what others changed   | names are read     |
| a lower number        | Conflict: the database was set back                 | the same           |

A notification says the number and the table (`NUMBER TABLE`). A server that heard of each change since the one it knows
reads these tables alone; one that missed any reads all. Versions before this one write the number only.
"""

import sqlalchemy as sa

from registry.errors import Conflict
from registry.state.shared.tables import REVISION


class Revision:
    """channel: on which PostgreSQL tells servers of a change."""

    def __init__(self, channel: str) -> None:
        self.channel, self.known = channel, 0
        self._tables: dict[int, str] = {}

    def read(self, db: sa.Connection) -> int:
        """Raises Conflict for one that is lower than before."""
        number = int(db.execute(sa.select(REVISION.c.number)).scalar_one())
        self._check(number)
        return number

    def advance(self, db: sa.Connection, table: str = "") -> int:
        """Part of each change's transaction. table: the only one that it changes. Raises Conflict as `read`."""
        next_number = sa.update(REVISION).values(number=REVISION.c.number + 1).returning(REVISION.c.number)
        number = int(db.execute(next_number).scalar_one())
        self._check(number - 1)
        db.execute(sa.select(sa.func.pg_notify(self.channel, f"{number} {table}".rstrip())))
        return number

    def announced(self, payload: str) -> None:
        """Take what a notification says."""
        number, _, table = payload.partition(" ")
        if number.isdecimal():
            self._tables[int(number)] = table
        for old in [table for table in self._tables if table <= self.known]:
            del self._tables[old]

    def tables_until(self, number: int) -> frozenset[str] | None:
        """The tables that changed after `known`, up to this number; None: not all of these changes were announced."""
        if number - self.known > len(self._tables):
            return None
        tables = [self._tables.get(one, "") for one in range(self.known + 1, number + 1)]
        return frozenset(tables) if all(tables) else None

    def committed(self, number: int) -> None:
        """A change of this server has been committed. Others may have come between: then a look reads these first."""
        if number == self.known + 1:
            self.known = number

    def _check(self, number: int) -> None:
        if number < self.known:
            raise Conflict(
                "The database of the fleet was set back to an older state. Restart its servers to use that, or bring "
                "the newer one back.",
                code="older_state",
            )
