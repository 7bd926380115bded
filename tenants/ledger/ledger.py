"""The ledger of a running server. Records nothing until there is a database, then every request."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from registry.storage.database import Database
from registry.storage.files import server_id
from tenants.ledger.journal import MOST, MOST_IN_FLEET, Journal
from tenants.ledger.rows import Entry, Rider, Settlement
from tenants.ledger.table import LedgerTable
from tenants.ledger.writer import LedgerWriter, write_journal

log = logging.getLogger("roundhouse.tenants")
T = TypeVar("T")


class Ledger:
    """in_fleet: rows are journalled while the database does not answer."""

    def __init__(self, data_dir: Path, currency: str = "USD", *, in_fleet: bool = False) -> None:
        self._data_dir, self._currency, self._in_fleet = data_dir, currency, in_fleet
        self._table: LedgerTable | None = None
        self._writer: LedgerWriter | None = None
        self.database: Database | None = None
        self.is_alone = False
        """Whether no other server can use the database: SQLite in this server's data directory."""
        self.clock: Callable[[], float] = time.time
        """Seconds since the epoch, for the times of rows and the periods of budgets."""

    @property
    def is_enabled(self) -> bool:
        return self._writer is not None

    @property
    def journalled(self) -> int:
        """Rows in the journal, waiting for the database to accept them."""
        return 0 if self._writer is None else self._writer.journalled

    @property
    def backlog(self) -> int:
        """Rows waiting for their transaction."""
        return 0 if self._writer is None else self._writer.backlog

    @property
    def is_failing(self) -> bool:
        """Whether requests are refused because the ledger cannot be written."""
        return self._writer is not None and self._writer.is_failing

    async def enable(self, database: Database) -> None:
        """Start recording. Writes the journal of an earlier run, and ends the rows that it left open as interrupted.

        Raises Unavailable.
        """
        server = await asyncio.to_thread(server_id, self._data_dir)
        table = LedgerTable(database, server, self._currency, in_fleet=self._in_fleet)
        own = Path(database.url.database or "").parent == self._data_dir.absolute()
        self.is_alone = database.is_sqlite and own
        journal = self._open_journal() if database.is_sqlite or self._in_fleet else None
        try:
            if journal:
                rows = len(journal)
                await asyncio.to_thread(write_journal, table, journal)
                log.warning("wrote the journal to the ledger", extra={"rows": rows})
            if interrupted := await asyncio.to_thread(table.interrupt, alone=self.is_alone):
                log.warning("marked requests of the last run as interrupted", extra={"requests": interrupted})
        except BaseException:
            if journal is not None:
                journal.close()
            raise
        self.database, self._table = database, table
        self._writer = LedgerWriter(table, journal, in_fleet=self._in_fleet)

    def _open_journal(self) -> Journal | None:
        try:
            return Journal(self._data_dir / "ledger.journal", MOST_IN_FLEET if self._in_fleet else MOST)
        except OSError as error:
            message = "no room for the ledger's journal: requests are refused while the disk is full"
            log.warning(message, extra={"cause": str(error)})
            return None

    def begin(self, entry: Entry) -> "asyncio.Future[None]":
        """Return a future that is done once the row is committed. Only while enabled. Raises Unavailable."""
        assert self._writer is not None
        return self._writer.begin(entry)

    def note(self, entry: Entry) -> None:
        """Begin a request like `begin`, without waiting for the commit."""
        assert self._writer is not None
        self._writer.note(entry)

    def end(self, settled: Settlement, rider: Rider | None = None, *, soon: bool = False) -> None:
        """Settle a request. soon: nothing waits for the commit."""
        assert self._writer is not None
        self._writer.end(settled, rider, soon=soon)

    async def flush(self) -> None:
        """Wait until all rows so far are committed, or the database failed to answer."""
        if self._writer is not None:
            await self._writer.flush()

    async def run(self, work: Callable[[], T]) -> T:
        """Run short work that writes to the ledger's database in the ledger's thread. Only while enabled.

        Raises what the work raises, and Unavailable if the server is stopping.
        """
        assert self._writer is not None
        return await self._writer.run(work)

    def interrupt_server(self, server: str) -> int:
        """End the open rows of a dead server as interrupted. Returns how many. Blocks on the database.

        Raises Unavailable.
        """
        return 0 if self._table is None else self._table.interrupt_server(server)

    def refuse_database(self) -> None:
        """Journal everything from now on, because the database is in an older state."""
        if self._writer is not None:
            self._writer.is_refused = True

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.close()
