"""Writes the ledger in one thread: rows that arrive during a commit share the next one.

| a request's   | while the database answers | while its disk is full | while it does not answer                |
|---------------|----------------------------|------------------------|-----------------------------------------|
| beginning     | committed, then it starts  | journalled, then, too  | Unavailable: nothing runs without a row |
| end           | committed                  | journalled             | kept, and written once it answers again |

Without keys and limits a request does not wait for its beginning: it runs and is not counted where it would be refused.

In a fleet, a database that does not answer within ANSWER_SECONDS is treated like a full disk.

An end with a rider is not journalled, because its rider cannot be. It is kept, and committed once there is room.

The journal is committed in parts once there is room; new rows are appended to it in the meantime. A full journal is
treated like a database that does not answer. Then at most one row per running request is kept, because each request
waits for the commit of its beginning.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from registry.errors import Unavailable
from tenants.ledger.journal import Journal
from tenants.ledger.rows import Entry, Rider, Settlement
from tenants.ledger.table import LedgerTable

log = logging.getLogger("roundhouse.tenants")
MAX_BATCH = 1000
"""Rows per transaction."""
RETRY_SECONDS = 0.5
ANSWER_SECONDS = 1.0
"""Seconds without an answer after which a fleet's server journals its rows."""
FAILING_SECONDS = 10.0
"""Time for which a failure counts if no new request fails or succeeds."""

GATHER_SECONDS = 1.0
"""Time for which rows that no request waits for are gathered, so that their commits do not slow requests."""
Begun = tuple[Entry, "asyncio.Future[None] | None"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Job:
    """Work on another table of this database, between two transactions of the ledger."""

    run: Callable[[], None]
    """Runs in the thread, resolves its future, and must not raise."""
    refuse: Callable[[], None]
    """Called instead if the database does not answer."""


@dataclass(slots=True)
class _Work:
    """Contents of one transaction."""

    begun: list[Begun] = field(default_factory=list)
    ended: list[Settlement] = field(default_factory=list)
    flushed: "list[asyncio.Future[None]]" = field(default_factory=list)
    jobs: list[_Job] = field(default_factory=list)
    stop: bool = False


class LedgerWriter:
    """Writes the ledger for one event loop. All methods but `close` must be called on it.

    Args:
        journal: closed with the writer. None to refuse requests when the disk is full.
        in_fleet: also journal what the database does not accept in time.
    """

    def __init__(self, table: LedgerTable, journal: Journal | None = None, *, in_fleet: bool = False) -> None:
        self._table, self._journal = table, journal
        self._bounded = _BoundedCalls() if in_fleet else None
        self.is_refused = False
        """Whether nothing is sent to the database any more, because it is in an older state."""
        self._retry_at = 0.0
        """Monotonic time before which the table is not retried; until then, the journal takes all rows."""
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Begun | Settlement | _Job | asyncio.Future[None] | None] = queue.SimpleQueue()
        self._dropped: set[str] = set()
        """Requests whose beginning was not written. Their ends are not written either."""
        self._riders: dict[str, Rider] = {}
        """Riders by the uid of their rows, until these have ended."""
        self._deferred: list[Settlement] = []
        """Ends with riders that wait for room on the database's disk."""
        self._failed = -FAILING_SECONDS
        """Monotonic time of the last failure since a transaction succeeded."""
        self._stopping, self._urgent = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    @property
    def is_failing(self) -> bool:
        """Whether requests are refused because their beginnings cannot be written."""
        return time.monotonic() - self._failed < FAILING_SECONDS

    @property
    def backlog(self) -> int:
        """Items that are not in a transaction yet."""
        return self._queue.qsize()

    @property
    def journalled(self) -> int:
        """Rows in the journal, waiting for the database to accept them."""
        return 0 if self._journal is None else len(self._journal)

    def begin(self, entry: Entry) -> "asyncio.Future[None]":
        """Return a future that is done once the row is committed or journalled. It raises Unavailable."""
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(lambda made: made.cancelled() or made.exception())  # its client may have left
        self._put((entry, done))
        return done

    def note(self, entry: Entry) -> None:
        """Begin a request like `begin`, without waiting. The row is committed soon."""
        self._queue.put((entry, None))

    def end(self, settled: Settlement, rider: Rider | None = None, *, soon: bool = False) -> None:
        """Settle a request. soon: the row may be gathered with others, like those of `note`."""
        if rider is not None:
            self._riders[settled.entry.uid] = rider
        if soon:
            self._queue.put(settled)
        else:
            self._put(settled)

    async def flush(self) -> None:
        """Wait until everything so far is committed, or the database failed to answer."""
        if self._stopping.is_set():  # nothing reads the queue any more
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self._put(done)
        await done

    async def run(self, work: Callable[[], T]) -> T:
        """Run short work that writes to this database, so that it and the ledger never block each other.

        Raises what the work raises, and Unavailable if the server is stopping.
        """
        if self._stopping.is_set():  # nothing reads the queue any more
            raise Unavailable("This server is shutting down.", code="shutting_down", retry_after=10)
        done: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # raised in the waiter
                self._loop.call_soon_threadsafe(_fail, done, error)
            else:
                self._loop.call_soon_threadsafe(_succeed, done, result)

        def refuse() -> None:
            self._loop.call_soon_threadsafe(_fail, done, _silent())

        self._put(_Job(run, refuse))
        return await done

    async def close(self) -> None:
        """Write all pending rows. Rows that the database does not accept are lost; the log says how many."""
        self._stopping.set()
        self._put(None)
        await asyncio.to_thread(self._thread.join)
        if self._journal is not None:
            self._journal.close()
        if self._bounded is not None:
            self._bounded.close()
        if self._deferred:
            log.warning(
                "ends of batch lines were not written: they will run again", extra={"lines": len(self._deferred)}
            )

    def _put(self, item: "Begun | Settlement | _Job | asyncio.Future[None] | None") -> None:
        """Queue an item for the next transaction, without gathering."""
        self._queue.put(item)
        self._urgent.set()

    # --- in the thread ----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        pending: list[Settlement] = []
        stop = fails = False
        while not stop:
            work = self._next(pending)
            stop = work.stop
            error: Exception | None = None
            try:
                self._write([entry for entry, _ in work.begun], work.ended, again=bool(pending))
                pending, fails, self._failed = [], False, -FAILING_SECONDS
            except Exception as failure:  # any error: requests wait for this thread
                if not fails:
                    are = "refused" if any(done is not None for _, done in work.begun) else "refused or not counted"
                    log.error("the ledger cannot be written: requests are %s until it can", are, exc_info=failure)
                self._failed = time.monotonic()
                error, fails, pending = failure, True, self._undropped(work)
            awaited = [done for _, done in work.begun if done is not None]
            self._loop.call_soon_threadsafe(_resolve, awaited, work.flushed, error)
            for job in work.jobs:
                self._do(job)
            if error is not None:
                self._stopping.wait(RETRY_SECONDS)
        if pending:
            log.error("ends of requests were not written", extra={"requests": len(pending)})

    def _do(self, job: _Job) -> None:
        if self._bounded is None:
            job.run()
        elif self.is_refused or self._bounded.is_late:
            job.refuse()
        else:
            with suppress(Unavailable):  # it takes longer, and will resolve its future later
                self._bounded.run(job.run)

    def _write(self, begun: list[Entry], ended: list[Settlement], *, again: bool) -> None:
        """Commit to the table after the rows in the journal, or journal the rows while the disk is full.

        Raises as the table does if the journal has no room either.
        """
        journal = self._journal
        if journal is None:
            return self._commit(begun, ended, again)
        is_pausing = time.monotonic() < self._retry_at
        if journal and (is_pausing or len(journal) > MAX_BATCH):
            if self._append(journal, begun, ended):
                try:
                    if not is_pausing:
                        self._send_part(journal)
                except Unavailable:
                    self._retry_at = time.monotonic() + RETRY_SECONDS
                return None
            while len(journal) > MAX_BATCH:
                self._send_part(journal)
        again = again or bool(journal) or bool(self._deferred)
        try:
            self._commit([*journal.begun, *begun], [*journal.ended, *self._deferred, *ended], again)
        except Unavailable as error:
            if error.code != "disk_full" and self._bounded is None:
                raise
            if not journal:
                log.error(
                    "the ledger's database accepts no rows: requests are journalled until it does", exc_info=error
                )
            if not self._append(journal, begun, ended):
                raise
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return None
        self._deferred.clear()
        return journal.clear()

    def _send_part(self, journal: Journal) -> None:
        """Commit the oldest rows of the journal. Raises as the table does."""
        begun, ended = journal.first(MAX_BATCH)
        self._commit(begun, ended, True)
        journal.drop(len(begun), len(ended))

    def _commit(self, begun: Sequence[Entry], ended: Sequence[Settlement], again: bool) -> None:
        if self.is_refused:
            raise _silent()
        riders = {"riders": self._riders} if self._riders else {}
        write = partial(self._table.write, begun, ended, again=again, **riders)
        if self._bounded is None:
            write()
        else:
            self._bounded.run(write)
        for one in ended if riders else ():
            self._end_rider(one)

    def _append(self, journal: Journal, begun: list[Entry], ended: list[Settlement]) -> bool:
        """Journal all but ends with riders, which are kept. Returns whether there was room."""
        deferred = [one for one in ended if one.entry.uid in self._riders]
        plain = [one for one in ended if one.entry.uid not in self._riders] if deferred else ended
        if not journal.append(begun, plain):
            return False
        self._deferred += deferred
        return True

    def _end_rider(self, settled: Settlement) -> None:
        if (rider := self._riders.pop(settled.entry.uid, None)) is not None:
            rider.end()

    def _next(self, pending: list[Settlement]) -> _Work:
        """Collect leftover and new items. Blocks if there are none."""
        work = _Work(ended=list(pending))
        timeout = self._pause()
        while len(work.begun) + len(work.ended) < len(pending) + MAX_BATCH:
            try:
                idle = not (pending or work.begun or work.ended or work.flushed or work.jobs)
                item = self._queue.get(block=idle, timeout=timeout)
            except queue.Empty:
                break
            if idle and item is not None:  # the first of this transaction
                self._urgent.wait(GATHER_SECONDS)
                self._urgent.clear()
            match item:
                case None:
                    work.stop = True
                    break
                case Settlement():
                    if item.entry.uid in self._dropped:
                        self._dropped.remove(item.entry.uid)
                        self._end_rider(item)
                    else:
                        work.ended.append(item)
                case asyncio.Future():
                    work.flushed.append(item)
                case _Job():
                    work.jobs.append(item)
                    break
                case _:
                    work.begun.append(item)
        if not self._queue.empty():  # remaining items may be urgent and older than the cleared flag
            self._urgent.set()
        return work

    def _pause(self) -> float | None:
        """Return the seconds to wait for rows before retrying the journal. None for no limit."""
        if not self._journal:
            return RETRY_SECONDS if self._deferred else None
        has_parts = len(self._journal) > MAX_BATCH and time.monotonic() >= self._retry_at
        return 0.0 if has_parts else RETRY_SECONDS

    def _undropped(self, work: _Work) -> list[Settlement]:
        """Give up the beginnings of this transaction. Returns the ends that must still be written."""
        dropped = {entry.uid for entry, _ in work.begun}
        self._dropped |= dropped - {one.entry.uid for one in work.ended}
        for one in work.ended:
            if one.entry.uid in dropped:
                self._end_rider(one)
        return [one for one in work.ended if one.entry.uid not in dropped]


def write_journal(table: LedgerTable, journal: Journal) -> None:
    """Commit the whole journal, parts of which may be committed already. Raises as the table does."""
    while journal:
        begun, ended = journal.first(MAX_BATCH)
        table.write(begun, ended, again=True)
        journal.drop(len(begun), len(ended))
    journal.clear()


def _silent() -> Unavailable:
    return Unavailable(
        "The server's database does not answer in time. Try again.", code="database_unavailable", retry_after=5
    )


class _BoundedCalls:
    """Runs calls in its own thread, one at a time, waiting at most ANSWER_SECONDS for each."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ledger-database")
        self._last: Future[None] | None = None

    @property
    def is_late(self) -> bool:
        """Whether a call that took too long is still running."""
        return self._last is not None and not self._last.done()

    def run(self, work: Callable[[], None]) -> None:
        """Raise what the work raises, or Unavailable if it or an earlier call takes too long."""
        if not self.is_late:
            self._last = self._pool.submit(work)
            if wait((self._last,), ANSWER_SECONDS).done:
                return self._last.result()
        raise _silent()

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _succeed(done: "asyncio.Future[T]", result: T) -> None:
    if not done.done():  # nobody waits any more
        done.set_result(result)


def _fail(done: "asyncio.Future[T]", error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


def _resolve(
    begun: "list[asyncio.Future[None]]", flushed: "list[asyncio.Future[None]]", error: Exception | None
) -> None:
    for done in flushed:
        if not done.done():
            done.set_result(None)
    for done in begun:
        if done.done():  # its client has disconnected
            continue
        if error is None:
            done.set_result(None)
        else:
            refused = Unavailable(
                "The ledger of requests cannot be written now. Try again.", code="ledger_unavailable", retry_after=5
            )
            done.set_exception(refused)
