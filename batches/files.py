"""The table of files, without their bytes. A team sees only its own."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from batches.records import UNFINISHED, FileRecord, FileState
from batches.storage.queries import find, find_all, page, take_turns
from batches.storage.tables import BATCHES, FILES
from registry.storage.database import Database


class FileTable:
    """Every call is one blocking transaction. Raises Unavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, file: FileRecord, repeated_since: float | None = None) -> FileRecord:
        """Store the row of a file whose bytes are stored.

        repeated_since: return the file that the team created since then with the same Idempotency-Key, if there is one.
        """
        with self._database.write() as connection:
            if file.idempotency and repeated_since is not None:
                take_turns(connection, file.team, file.idempotency)
                same = _repeat(file.team, file.idempotency, repeated_since)
                if (row := connection.execute(same).one_or_none()) is not None:
                    return _file(row)
            connection.execute(sa.insert(FILES).values(**asdict(file)))
        return file

    def get(self, id_: str, team: str) -> FileRecord | None:
        """Return the file, or None if it is unknown, deleted or another team's."""
        query = sa.select(FILES).where(FILES.c.id == id_, FILES.c.team == team, FILES.c.deleted.is_(None))
        return find(self._database, query, _file)

    def list(
        self,
        team: str,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest: bool = True,
        now: float = 0.0,
    ) -> Sequence[FileRecord] | None:
        """Return files in order of creation, or None if `after` is unknown. after: last id of the previous page.

        now: leave out files that expired by then. Those that a batch reads stay stored.
        """
        where = [FILES.c.team == team, FILES.c.deleted.is_(None), FILES.c.expires.is_(None) | (FILES.c.expires > now)]
        if purpose is not None:
            where.append(FILES.c.purpose == purpose)
        return page(self._database, FILES, _file, where, team, after, limit, newest=newest)

    def find_repeat(self, team: str, idempotency: str, since: float) -> FileRecord | None:
        """Return the file that the team created since then with the same Idempotency-Key, even if it was deleted."""
        return find(self._database, _repeat(team, idempotency, since), _file)

    def ids(self) -> set[str]:
        """Return the ids of all files whose bytes are stored."""
        with self._database.read() as connection:
            return set(connection.execute(sa.select(FILES.c.id)).scalars())

    def stored(self, team: str | None = None) -> tuple[int, int]:
        """Return the number of files and their bytes, including deleted files whose bytes still exist."""
        query = sa.select(sa.func.count(), sa.cast(sa.func.coalesce(sa.func.sum(FILES.c.size), 0), sa.BigInteger))
        if team is not None:
            query = query.where(FILES.c.team == team)
        with self._database.read() as connection:
            count, size = connection.execute(query).one()
        return int(count), int(size)

    def delete(self, id_: str, team: str, now: float) -> bool:
        """Hide a file from its team. Returns False if there is none. `unused` returns it once no batch reads it."""
        query = sa.update(FILES).where(FILES.c.id == id_, FILES.c.team == team, FILES.c.deleted.is_(None))
        with self._database.write() as connection:
            return connection.execute(query.values(deleted=now)).rowcount > 0

    def unused(self, now: float) -> Sequence[FileRecord]:
        """Return at most 100 files that are deleted or expired and that no unfinished batch reads."""
        states = [state.value for state in UNFINISHED]
        reads = sa.exists().where(BATCHES.c.input_file == FILES.c.id, BATCHES.c.state.in_(states))
        query = sa.select(FILES).where(FILES.c.deleted.is_not(None) | (FILES.c.expires <= now), ~reads).limit(100)
        return find_all(self._database, query, _file)

    def remove(self, id_: str) -> None:
        """Delete the row of a file whose bytes are deleted."""
        with self._database.write() as connection:
            connection.execute(sa.delete(FILES).where(FILES.c.id == id_))


def _repeat(team: str, idempotency: str, since: float) -> "sa.Select[Any]":
    same = sa.select(FILES).where(FILES.c.team == team, FILES.c.idempotency == idempotency, FILES.c.created >= since)
    return same.order_by(FILES.c.created).limit(1)


def _file(row: "sa.Row[tuple[object, ...]]") -> FileRecord:
    values = row._asdict()
    return FileRecord(**{**values, "state": FileState(values["state"])})
