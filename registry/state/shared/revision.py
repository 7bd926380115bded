"""The number of the last change to shared names, and which table it changed.

| number in the row | on a change                                        | on a check     |
|-------------------|----------------------------------------------------|----------------|
| the one known     | increments it, and notifies all servers            | nothing is new |
| higher            | the same; the next check reads the others' changes | names are read |
| lower             | Conflict, since the database was reset             | the same       |

A notification contains the number and the table (`NUMBER TABLE`). A server that received every notification since its
known number rereads only these tables; one that missed any rereads all. A change of several tables names none.
"""

import sqlalchemy as sa

from registry.errors import Conflict
from registry.state.shared.tables import REVISION


class Revision:
    """The last known change. channel: PostgreSQL's notification channel for changes."""

    def __init__(self, channel: str) -> None:
        self.channel, self.known = channel, 0
        self._tables: dict[int, str] = {}

    def read(self, db: sa.Connection) -> int:
        """Read the number. Raises Conflict if it is lower than the known one."""
        number = int(db.execute(sa.select(REVISION.c.number)).scalar_one())
        self._check(number)
        return number

    def advance(self, db: sa.Connection, table: str = "") -> int:
        """Increment the number, as part of each change. table: the only changed one. Raises Conflict as `read`."""
        next_number = sa.update(REVISION).values(number=REVISION.c.number + 1).returning(REVISION.c.number)
        number = int(db.execute(next_number).scalar_one())
        self._check(number - 1)
        db.execute(sa.select(sa.func.pg_notify(self.channel, f"{number} {table}".rstrip())))
        return number

    def announced(self, payload: str) -> None:
        """Store a notification."""
        number, _, table = payload.partition(" ")
        if number.isdecimal():
            self._tables[int(number)] = table
        for old in [number for number in self._tables if number <= self.known]:
            del self._tables[old]

    def tables_until(self, number: int) -> frozenset[str] | None:
        """Return the tables changed after `known` up to this number; None if a notification was missed."""
        if number - self.known > len(self._tables):
            return None
        tables = [self._tables.get(one, "") for one in range(self.known + 1, number + 1)]
        return frozenset(tables) if all(tables) else None

    def committed(self, number: int) -> None:
        """Note a committed change of this server. If others came in between, the next check reads those first."""
        if number == self.known + 1:
            self.known = number

    def _check(self, number: int) -> None:
        if number < self.known:
            raise Conflict(
                "The database of the fleet was reset to an older state. Restart its servers to use that state, or "
                "restore the newer one.",
                code="older_state",
            )
