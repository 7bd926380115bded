"""One thread that writes the ledger in batches: what arrives meanwhile goes into the next transaction.

| what comes                 | while the database answers            | while it does not                             |
|----------------------------|---------------------------------------|-----------------------------------------------|
| the beginning of a request | committed, then the request may go on | Unavailable: nothing runs without a row       |
| the end of a request       | committed                             | kept, and written once it answers again       |

Nothing more is kept than there are requests under way: each waits for the commit of its beginning.
"""

import asyncio
import logging
import queue
import threading
from dataclasses import dataclass, field

from registry.errors import Unavailable
from tenants.ledger.rows import Entry, Settlement
from tenants.ledger.table import LedgerTable

log = logging.getLogger("roundhouse.tenants")
MAX_BATCH = 1000
"""Rows of one transaction."""
RETRY_SECONDS = 0.5


Begun = tuple[Entry, "asyncio.Future[None]"]


@dataclass(slots=True)
class _Work:
    """Contents of one transaction."""

    begun: list[Begun] = field(default_factory=list)
    ended: list[Settlement] = field(default_factory=list)
    flushed: "list[asyncio.Future[None]]" = field(default_factory=list)
    stop: bool = False


class LedgerWriter:
    """For one event loop; all but `close` is called on it."""

    def __init__(self, table: LedgerTable) -> None:
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Begun | Settlement | asyncio.Future[None] | None] = queue.SimpleQueue()
        self._dropped: set[str] = set()
        """Requests whose beginning was not written: their ends are not either."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def begin(self, entry: Entry) -> "asyncio.Future[None]":
        """Done once it is committed. Raises Unavailable."""
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(lambda made: made.cancelled() or made.exception())  # its client may have left
        self._queue.put((entry, done))
        return done

    def end(self, settled: Settlement) -> None:
        self._queue.put(settled)

    async def flush(self) -> None:
        """Returns once what has come until now is committed, or the database did not answer."""
        if self._stopping.is_set():  # nothing reads the queue any more
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(done)
        await done

    async def close(self) -> None:
        """Write what has come; what a database that does not answer keeps out is lost, and the log tells how much."""
        self._stopping.set()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    # --- in the thread ----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        pending: list[Settlement] = []
        stop = fails = False
        while not stop:
            work = self._next(pending)
            stop = work.stop
            error: Exception | None = None
            try:
                self._table.write([entry for entry, _ in work.begun], work.ended, again=bool(pending))
                pending, fails = [], False
            except Exception as failure:  # whatever it is: requests wait for this thread
                if not fails:
                    log.error("the ledger cannot be written: requests are refused until it can", exc_info=failure)
                error, fails, pending = failure, True, self._undropped(work)
            self._loop.call_soon_threadsafe(_resolve, [done for _, done in work.begun], work.flushed, error)
            if error is not None:
                self._stopping.wait(RETRY_SECONDS)
        if pending:
            log.error("ends of requests were not written", extra={"requests": len(pending)})

    def _next(self, pending: list[Settlement]) -> _Work:
        """What is left from before, and what has come; waits for something where there is neither."""
        work = _Work(ended=list(pending))
        while len(work.begun) + len(work.ended) < len(pending) + MAX_BATCH:
            try:
                item = self._queue.get(block=not (pending or work.begun or work.ended or work.flushed))
            except queue.Empty:
                break
            match item:
                case None:
                    work.stop = True
                    break
                case Settlement():
                    if item.entry.uid in self._dropped:
                        self._dropped.remove(item.entry.uid)
                    else:
                        work.ended.append(item)
                case asyncio.Future():
                    work.flushed.append(item)
                case _:
                    work.begun.append(item)
        return work

    def _undropped(self, work: _Work) -> list[Settlement]:
        """Ends that are to be written yet, once the beginnings of this transaction are given up."""
        dropped = {entry.uid for entry, _ in work.begun}
        self._dropped |= dropped - {one.entry.uid for one in work.ended}
        return [one for one in work.ended if one.entry.uid not in dropped]


def _resolve(
    begun: "list[asyncio.Future[None]]", flushed: "list[asyncio.Future[None]]", error: Exception | None
) -> None:
    for done in flushed:
        if not done.done():
            done.set_result(None)
    for done in begun:
        if done.done():  # its client has left
            continue
        if error is None:
            done.set_result(None)
        else:
            refused = Unavailable(
                "The ledger of requests cannot be written now. Try again.", code="ledger_unavailable", retry_after=5
            )
            done.set_exception(refused)
