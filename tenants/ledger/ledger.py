"""The ledger of a running server: nothing until there is a database for it, then every request."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from registry.storage.files import server_id
from tenants.ledger.rows import Entry, Rider, Settlement

if TYPE_CHECKING:  # a server without keys loads no database
    from registry.storage.database import Database
    from tenants.ledger.journal import Journal
    from tenants.ledger.table import LedgerTable
    from tenants.ledger.writer import LedgerWriter

log = logging.getLogger("roundhouse.tenants")
T = TypeVar("T")


class Ledger:
    """in_fleet: rows are journalled while the database does not answer."""

    def __init__(self, data_dir: Path, currency: str = "USD", *, in_fleet: bool = False) -> None:
        self._data_dir, self._currency, self._in_fleet = data_dir, currency, in_fleet
        self._table: LedgerTable | None = None
        self._writer: LedgerWriter | None = None
        self.database: Database | None = None
        self.clock: Callable[[], float] = time.time
        """Seconds since the epoch, for the times of rows."""

    @property
    def is_enabled(self) -> bool:
        return self._writer is not None

    @property
    def journalled(self) -> int:
        """Rows that wait for room on the database's disk."""
        return 0 if self._writer is None else self._writer.journalled

    @property
    def backlog(self) -> int:
        """Rows that wait for their transaction."""
        return 0 if self._writer is None else self._writer.backlog

    @property
    def is_failing(self) -> bool:
        """Requests are refused now, because the ledger cannot be written."""
        return self._writer is not None and self._writer.is_failing

    async def enable(self, database: "Database") -> None:
        """Begin. What an earlier run journalled is written; what it left open is ended as interrupted.

        Raises Unavailable.
        """
        from tenants.ledger.table import LedgerTable
        from tenants.ledger.writer import LedgerWriter, write_journal

        server = await asyncio.to_thread(server_id, self._data_dir)
        table = LedgerTable(database, server, self._currency, in_fleet=self._in_fleet)
        alone = database.is_sqlite and Path(database.url.database or "").parent == self._data_dir.absolute()
        journal = self._open_journal() if database.is_sqlite or self._in_fleet else None
        try:
            if journal:
                rows = len(journal)
                await asyncio.to_thread(write_journal, table, journal)
                log.warning("rows of the journal were written to the ledger", extra={"rows": rows})
            if interrupted := await asyncio.to_thread(table.interrupt, alone=alone):
                log.warning("requests that the last run did not end", extra={"requests": interrupted})
        except BaseException:
            if journal is not None:
                journal.close()
            raise
        self.database, self._table = database, table
        self._writer = LedgerWriter(table, journal, in_fleet=self._in_fleet)

    def _open_journal(self) -> "Journal | None":
        from tenants.ledger.journal import MOST, MOST_IN_FLEET, Journal

        try:
            return Journal(self._data_dir / "ledger.journal", most=MOST_IN_FLEET if self._in_fleet else MOST)
        except OSError as error:
            log.warning("no room for the ledger's journal: a full disk refuses requests", extra={"cause": str(error)})
            return None

    def begin(self, entry: Entry) -> "asyncio.Future[None]":
        """Done once it is committed. Raises Unavailable. Only while it is kept."""
        assert self._writer is not None
        return self._writer.begin(entry)

    def note(self, entry: Entry) -> None:
        """Begin as `begin` does, for a request that does not wait for it."""
        assert self._writer is not None
        self._writer.note(entry)

    def end(self, settled: Settlement, rider: Rider | None = None, *, soon: bool = False) -> None:
        """soon: no request waits for it."""
        assert self._writer is not None
        self._writer.end(settled, rider, soon=soon)

    async def flush(self) -> None:
        """Return once everything so far is committed, or the database did not answer."""
        if self._writer is not None:
            await self._writer.flush()

    async def run(self, work: Callable[[], T]) -> T:
        """Run short work that writes the ledger's database in the ledger's thread. Only while it is enabled.

        Raises what the work raises, and Unavailable once the server stops.
        """
        assert self._writer is not None
        return await self._writer.run(work)

    def interrupt_server(self, server: str) -> int:
        """End the open rows of another server, which is gone, as interrupted. Returns how many. Blocks.

        Raises Unavailable.
        """
        return 0 if self._table is None else self._table.interrupt_server(server)

    def refuse_database(self) -> None:
        """Journal everything from now on: the database is at an older state."""
        if self._writer is not None:
            self._writer.is_refused = True

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.close()
