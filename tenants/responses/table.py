"""The table of stored responses. A team sees only its own rows that have not expired."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from registry.base.wording import quoted
from registry.errors import BadRequest, QueueFull, TooLarge
from registry.storage.database import Database
from tenants.responses.rows import SEND_ITSELF, STOPPED, StoredResponse, edit, item_key, output_items
from tenants.storage.tables import RESPONSE_ITEMS, RESPONSES, TEAMS

HOUR = 3600.0
EXPIRED_AT_ONCE = 500
"""Most expired rows that one transaction deletes. 140,000 kept all other writers of SQLite out for 1.4 s."""
EVICTED_AT_ONCE = 20
"""Rows that are read to find the oldest. PostgreSQL's driver would fetch all of a team's, which may be 100,000."""


class ResponseTable:
    """Each call is one transaction and blocks on the database. most: total bytes of a team's rows."""

    def __init__(self, database: Database, server: str, most: int, clock: Callable[[], float] = time.time) -> None:
        self._database, self._server, self._most, self._clock = database, server, most, clock

    def hours(self) -> dict[str, int]:
        """Return the hours for which teams store responses, without teams that store none."""
        query = sa.select(TEAMS.c.id, TEAMS.c.response_hours).where(TEAMS.c.response_hours > 0)
        with self._database.read() as connection:
            return {row.id: row.response_hours for row in connection.execute(query)}

    def put(self, id_: str, team: str, hours: int, input_: bytes, answer: bytes, *, running: bool = False) -> bool:
        """Store a row. Deletes the team's oldest ended rows if it needs room.

        Returns False if the team is archived. Raises QueueFull if running responses leave no room.
        """
        now, items = self._clock(), output_items(answer)
        size = len(input_) + _size(answer, items)
        with self._database.write() as connection:
            _delete_expired(connection, now)
            team_row = connection.execute(sa.select(TEAMS.c.archived).where(TEAMS.c.id == team).with_for_update())
            if team_row.scalar_one() is not None:
                return False
            self._make_room(connection, team, size)
            row = StoredResponse(id_, team, self._server, now, now + hours * HOUR, running, input_, answer)
            connection.execute(sa.insert(RESPONSES).values(**asdict(row), bytes=size))
            _insert_items(connection, id_, items)
        return True

    def _make_room(self, connection: sa.Connection, team: str, size: int) -> None:
        mine = RESPONSES.c.team == team
        stored = connection.execute(sa.select(sa.func.sum(RESPONSES.c.bytes)).where(mine)).scalar() or 0
        over = int(stored) + size - self._most
        oldest = sa.select(RESPONSES.c.id, RESPONSES.c.bytes).where(mine, ~RESPONSES.c.running)
        oldest = oldest.order_by(RESPONSES.c.created).limit(EVICTED_AT_ONCE)
        while over > 0:
            if not (rows := connection.execute(oldest).all()):
                raise QueueFull(
                    "Your team's running responses leave no room for another one: wait for one to end, or cancel one.",
                    code="responses_full",
                    retry_after=5,
                )
            for row in rows:
                if over > 0:
                    connection.execute(sa.delete(RESPONSES).where(RESPONSES.c.id == row.id))
                    over -= row.bytes

    def get(self, team: str, id_: str) -> StoredResponse | None:
        columns = [column for column in RESPONSES.c if column.name != "bytes"]
        query = sa.select(*columns).where(RESPONSES.c.id == id_, RESPONSES.c.team == team)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None or (row.expires <= self._clock() and not row.running):
            return None
        return StoredResponse(**row._asdict())

    def items(self, team: str, ids: Sequence[str], most: int) -> Mapping[str, bytes]:
        """Return the items with these ids in the team's answers, as JSON by id. Missing items are left out.

        most: total bytes. Raises TooLarge, and BadRequest if several items have the same id.
        """
        keys = {item_key(id_): id_ for id_ in ids}
        mine = RESPONSES.c.team == team, RESPONSES.c.expires > self._clock(), RESPONSE_ITEMS.c.id.in_(keys)
        size = sa.func.length(RESPONSE_ITEMS.c.item).label("size")
        with self._database.read() as connection:
            rows = connection.execute(sa.select(RESPONSE_ITEMS.c.id, size).join(RESPONSES).where(*mine)).all()
            counts = Counter(row.id for row in rows)
            for key, count in counts.items():
                if count > 1:
                    raise BadRequest(
                        f"{count} stored items have the id {quoted(keys[key])}, since the server that answered does "
                        f"not make its ids unique. {SEND_ITSELF}",
                        param="input",
                        code="ambiguous_item",
                    )
            if sum(row.size for row in rows) > most:
                raise TooLarge(
                    f"The items that the input names have more than {most} bytes together (see --bounds-factor): start "
                    "a new conversation.",
                    param="input",
                    code="response_too_large",
                )
            query = sa.select(RESPONSE_ITEMS.c.id, RESPONSE_ITEMS.c.item).join(RESPONSES).where(*mine)
            return {keys[row.id]: row.item for row in connection.execute(query)}

    def end(self, id_: str, answer: bytes) -> bool:
        """Store the answer of a running response. Returns False if it is not running."""
        items = output_items(answer)
        size = sa.func.length(RESPONSES.c.input) + _size(answer, items)
        query = sa.update(RESPONSES).where(RESPONSES.c.id == id_, RESPONSES.c.running)
        with self._database.write() as connection:
            if not connection.execute(query.values(running=False, answer=answer, bytes=size)).rowcount:
                return False
            _insert_items(connection, id_, items)
        return True

    def delete(self, team: str, id_: str) -> bool:
        with self._database.write() as connection:
            query = sa.delete(RESPONSES).where(RESPONSES.c.id == id_, RESPONSES.c.team == team)
            return connection.execute(query).rowcount > 0

    def sweep(self) -> int:
        """Delete expired rows, in several transactions. Returns how many."""
        now, total = self._clock(), 0
        while True:
            with self._database.write() as connection:
                count = _delete_expired(connection, now)
            total += count
            if count < EXPIRED_AT_ONCE:
                return total
            self._database.pause()

    def is_lost(self, row: StoredResponse) -> bool:
        """Whether the row claims to be running on this server."""
        return row.running and row.server == self._server

    def interrupt(self, *ids: str, alone: bool = False) -> int:
        """Mark this server's running responses as failed, or only those with these ids. Returns how many.

        alone: no other server uses the database, so those of another server come from a restored backup.
        """
        mine = [sa.true() if alone else RESPONSES.c.server == self._server, RESPONSES.c.running]
        if ids:
            mine.append(RESPONSES.c.id.in_(ids))
        with self._database.read() as connection:
            rows = connection.execute(sa.select(RESPONSES.c.id, RESPONSES.c.answer).where(*mine)).all()
        return sum(self.end(row.id, edit(row.answer, STOPPED)) for row in rows)


def _delete_expired(connection: sa.Connection, now: float) -> int:
    old = sa.select(RESPONSES.c.id).where(RESPONSES.c.expires <= now, ~RESPONSES.c.running).limit(EXPIRED_AT_ONCE)
    return connection.execute(sa.delete(RESPONSES).where(RESPONSES.c.id.in_(old.scalar_subquery()))).rowcount


def _size(answer: bytes, items: Sequence[tuple[str, bytes]]) -> int:
    return len(answer) + sum(len(item) for _, item in items)


def _insert_items(connection: sa.Connection, response: str, items: Sequence[tuple[str, bytes]]) -> None:
    rows = [
        {"response": response, "position": position, "id": key, "item": item}
        for position, (key, item) in enumerate(items)
    ]
    if rows:
        connection.execute(sa.insert(RESPONSE_ITEMS), rows)
