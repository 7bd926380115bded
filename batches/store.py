"""The batch tables of a running server, created in the ledger's database with the first file or batch."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from batches.callbacks.outbox import OutboxTable
from batches.callbacks.webhooks import WebhookTable
from batches.files import FileTable
from batches.lines import LineTable
from batches.runners import RateTable, RunnerTable
from batches.storage.opening import has_tables, prepare
from batches.table import BatchTable
from registry.base.threads import Threads
from registry.base.wording import quoted
from registry.errors import BadRequest
from registry.storage.database import Database
from registry.storage.files import server_id
from tenants.ledger.ledger import Ledger

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchTables:
    files: FileTable
    batches: BatchTable
    lines: LineTable
    runners: RunnerTable
    rates: RateTable
    outbox: OutboxTable
    webhooks: WebhookTable


class BatchStore:
    """open_database: creates the database of keys and ledger if it is missing. key: makes secrets of webhooks, once it
    is open.

    | call   | thread        | if tables are missing |
    |--------|---------------|-----------------------|
    | opened | any           | returns False         |
    | write  | the ledger's  | creates them          |
    | read   | one of two    | creates them          |
    | find   | one of two    | returns `missing`     |
    """

    def __init__(
        self,
        ledger: Ledger,
        data_dir: Path,
        open_database: Callable[[], Awaitable[object]],
        key: Callable[[], bytes],
    ) -> None:
        self._ledger, self._data_dir, self._open_database, self._key = ledger, data_dir, open_database, key
        self._tables: BatchTables | None = None
        self._opening = asyncio.Lock()
        self._threads = Threads("database of batches", count=2, waiting=256)

    async def opened(self) -> bool:
        """Return whether a file or batch was ever stored. Raises Unavailable, Conflict for a newer version's tables."""
        if self._tables is not None:
            return True
        database = self._ledger.database
        if database is None:
            return False
        if not await asyncio.to_thread(has_tables, database):
            return False
        await self._open()
        return True

    async def write(self, work: Callable[[BatchTables], T]) -> T:
        """Run short transactions in the ledger's thread. Raises what the work raises, and Unavailable."""
        tables = await self._open()
        return await self._ledger.run(lambda: work(tables))

    async def read(self, work: Callable[[BatchTables], T], team: str = "") -> T:
        """Run reads, which do not block writers. Raises what the work raises, Unavailable, QueueFull.

        team: the team that asked, whose turn it takes; '' for the server itself.
        """
        return await self._threads.run_for(team, work, await self._open())

    async def find(self, work: Callable[[BatchTables], T], missing: T, team: str = "") -> T:
        """Read like `read`, or return `missing` if there are no tables."""
        return await self.read(work, team) if await self.opened() else missing

    async def page(
        self,
        work: Callable[[BatchTables, int], Sequence[T] | None],
        after: str | None,
        limit: int,
        team: str,
        param: str = "after",
    ) -> tuple[Sequence[T], bool]:
        """Return a page of a list, and whether there are more.

        work: reads up to that many rows, or returns None if `after` is unknown.

        Raises BadRequest for an unknown `after`, Unavailable, QueueFull.
        """
        missing: Sequence[T] | None = [] if after is None else None
        rows = await self.find(lambda tables: work(tables, limit + 1), missing, team)
        if rows is None:
            text = f"There is no {quoted(after or '')} in this list (any more): begin with its first page."
            raise BadRequest(text, param=param)
        return rows[:limit], len(rows) > limit

    @property
    def shared_database(self) -> Database | None:
        """The database if other gateways may share it: a PostgreSQL database that is open."""
        database = self._ledger.database
        return None if database is None or database.is_sqlite else database

    @property
    def is_alone(self) -> bool:
        """Whether no other server can use this database."""
        return self._ledger.is_alone

    async def _open(self) -> BatchTables:
        if self._tables is not None:
            return self._tables
        async with self._opening:
            if self._tables is None:
                if self._ledger.database is None:
                    await self._open_database()
                database = self._ledger.database
                assert database is not None, "the ledger is enabled once its database is open"
                self._tables = await asyncio.to_thread(_open_tables, database, self._data_dir, self._key())
        return self._tables


def _open_tables(database: Database, data_dir: Path, key: bytes) -> BatchTables:
    prepare(database)
    server = server_id(data_dir)
    runners, rates = RunnerTable(database, server), RateTable(database, server)
    return BatchTables(
        FileTable(database), BatchTable(database), LineTable(database), runners, rates, OutboxTable(database, key),
        WebhookTable(database, key),
    )  # fmt: skip
