"""The table of stored responses. A team sees only its own rows, and none that has expired."""

import time
from collections.abc import Callable
from dataclasses import asdict

import sqlalchemy as sa

from registry.errors import QueueFull
from registry.storage.database import Database
from tenants.responses.rows import STOPPED, StoredResponse, edit
from tenants.storage.tables import RESPONSES, TEAMS

HOUR = 3600.0


class ResponseTable:
    """Every call is one blocking transaction. most: bytes that all rows of a team may have together."""

    def __init__(self, database: Database, server: str, most: int, clock: Callable[[], float] = time.time) -> None:
        self._database, self._server, self._most, self._clock = database, server, most, clock

    def hours(self) -> dict[str, int]:
        """Hours for which each team stores responses, without those that store none."""
        query = sa.select(TEAMS.c.id, TEAMS.c.response_hours).where(TEAMS.c.response_hours > 0)
        with self._database.read() as connection:
            return {row.id: row.response_hours for row in connection.execute(query)}

    def put(self, id_: str, team: str, hours: int, input_: bytes, answer: bytes, *, running: bool = False) -> bool:
        """Store a row, deleting the team's oldest ones for room.

        False if the team is archived. Raises QueueFull if only running ones are left to delete.
        """
        now, size = self._clock(), len(input_) + len(answer)
        with self._database.write() as connection:
            connection.execute(sa.delete(RESPONSES).where(RESPONSES.c.expires <= now, ~RESPONSES.c.running))
            team_row = connection.execute(sa.select(TEAMS.c.archived).where(TEAMS.c.id == team).with_for_update())
            if team_row.scalar_one() is not None:
                return False
            self._make_room(connection, team, size)
            row = StoredResponse(id_, team, self._server, now, now + hours * HOUR, running, input_, answer)
            connection.execute(sa.insert(RESPONSES).values(**asdict(row), bytes=size))
        return True

    def _make_room(self, connection: sa.Connection, team: str, size: int) -> None:
        mine = RESPONSES.c.team == team
        stored = connection.execute(sa.select(sa.func.sum(RESPONSES.c.bytes)).where(mine)).scalar() or 0
        over = int(stored) + size - self._most
        oldest = sa.select(RESPONSES.c.id, RESPONSES.c.bytes).where(mine, ~RESPONSES.c.running)
        rows = connection.execute(oldest.order_by(RESPONSES.c.created)) if over > 0 else ()
        gone = []
        for row in rows:
            if over <= 0:
                break
            gone.append(row.id)
            over -= row.bytes
        if over > 0:
            raise QueueFull(
                "Your team's running responses leave no room for another one: wait for one to end, or cancel one.",
                code="responses_full",
                retry_after=5,
            )
        for id_ in gone:
            connection.execute(sa.delete(RESPONSES).where(RESPONSES.c.id == id_))

    def get(self, team: str, id_: str) -> StoredResponse | None:
        columns = [column for column in RESPONSES.c if column.name != "bytes"]
        query = sa.select(*columns).where(RESPONSES.c.id == id_, RESPONSES.c.team == team)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None or (row.expires <= self._clock() and not row.running):
            return None
        return StoredResponse(**row._asdict())

    def end(self, id_: str, answer: bytes) -> bool:
        """Store the answer of a running response. False if it is not running."""
        size = sa.func.length(RESPONSES.c.input) + len(answer)
        query = sa.update(RESPONSES).where(RESPONSES.c.id == id_, RESPONSES.c.running)
        with self._database.write() as connection:
            return connection.execute(query.values(running=False, answer=answer, bytes=size)).rowcount > 0

    def delete(self, team: str, id_: str) -> bool:
        with self._database.write() as connection:
            query = sa.delete(RESPONSES).where(RESPONSES.c.id == id_, RESPONSES.c.team == team)
            return connection.execute(query).rowcount > 0

    def sweep(self) -> int:
        """Delete expired rows; returns how many."""
        with self._database.write() as connection:
            old = sa.delete(RESPONSES).where(RESPONSES.c.expires <= self._clock(), ~RESPONSES.c.running)
            return connection.execute(old).rowcount

    def is_lost(self, row: StoredResponse) -> bool:
        """Whether the row says that this server is running it."""
        return row.running and row.server == self._server

    def interrupt(self, *ids: str) -> int:
        """Mark this server's running responses, or only those named, as failed; returns how many."""
        mine = [RESPONSES.c.server == self._server, RESPONSES.c.running]
        if ids:
            mine.append(RESPONSES.c.id.in_(ids))
        with self._database.read() as connection:
            rows = connection.execute(sa.select(RESPONSES.c.id, RESPONSES.c.answer).where(*mine)).all()
        return sum(self.end(row.id, edit(row.answer, STOPPED)) for row in rows)
