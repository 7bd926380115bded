"""Sessions of signed-in browsers, for all servers of a fleet: a `console.sessions.SessionStore`.

Sessions expire by the database's clock. All calls block on the database and raise Unavailable; run them in a thread.
"""

import datetime

import sqlalchemy as sa

from fleet.membership.tables import SESSIONS
from registry.storage.database import Database


class SessionTable:
    """Sessions in the database. seconds: length of a session."""

    def __init__(self, database: Database, seconds: float) -> None:
        self._database, self._length = database, datetime.timedelta(seconds=seconds)

    def add(self, digest: str, owner: str, credential: str, most: int) -> None:
        now = sa.func.clock_timestamp()
        newest = sa.select(SESSIONS.c.digest).where(SESSIONS.c.owner == owner)
        newest = newest.order_by(SESSIONS.c.ends.desc()).limit(most - 1)
        too_many = (SESSIONS.c.owner == owner) & SESSIONS.c.digest.not_in(newest)
        with self._database.write() as connection:
            connection.execute(sa.delete(SESSIONS).where((SESSIONS.c.ends <= now) | too_many))
            values = {"digest": digest, "owner": owner, "credential": credential, "ends": now + self._length}
            connection.execute(sa.insert(SESSIONS).values(values))

    def find(self, digest: str) -> str | None:
        query = sa.select(SESSIONS.c.credential).where(SESSIONS.c.digest == digest)
        with self._database.read() as connection:
            return connection.execute(query.where(SESSIONS.c.ends > sa.func.clock_timestamp())).scalar()

    def remove(self, digest: str) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(SESSIONS).where(SESSIONS.c.digest == digest))
