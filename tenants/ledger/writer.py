"""Write the ledger in one thread: rows that arrive during a commit share the next one.

| a request's   | while the database answers | while its disk is full | while it does not answer                |
|---------------|----------------------------|------------------------|-----------------------------------------|
| beginning     | committed, then it goes on | journalled, then too   | Unavailable: nothing runs without a row |
| end           | committed                  | journalled             | kept, and written once it answers again |

In a fleet, a database that does not answer within ANSWER_SECONDS is as one whose disk is full.

An end with a rider is not journalled, as its rider could not be: it is kept, and committed once there is room.

What is in the journal is committed once there is room, a part at a time; meanwhile new rows follow in the journal. A
full journal counts as a database that does not answer: then nothing more is kept than there are requests under way,
since each waits for the commit of its beginning.
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
"""Rows of one transaction."""
RETRY_SECONDS = 0.5
ANSWER_SECONDS = 1.0
"""Seconds without an answer after which a fleet's rows are journalled."""
FAILING_SECONDS = 10.0
"""Time that a failure counts, without a new request that fails or succeeds."""


GATHER_SECONDS = 1.0
"""Time for which rows that no request waits for are gathered: their commits must not slow down requests."""
Begun = tuple[Entry, "asyncio.Future[None] | None"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Job:
    """Work of another table in this database, between two transactions of the ledger."""

    run: Callable[[], None]
    """Runs in the thread, resolves its future and raises nothing."""
    refuse: Callable[[], None]
    """Runs in its place where the database does not answer anyway."""


@dataclass(slots=True)
class _Work:
    """Contents of one transaction."""

    begun: list[Begun] = field(default_factory=list)
    ended: list[Settlement] = field(default_factory=list)
    flushed: "list[asyncio.Future[None]]" = field(default_factory=list)
    jobs: list[_Job] = field(default_factory=list)
    stop: bool = False


class LedgerWriter:
    """A writer of the ledger for one event loop; all but `close` is called on it.

    Args:
        journal: closed with it; None: requests are refused.
        in_fleet: it also journals what the database does not answer in time.
    """

    def __init__(self, table: LedgerTable, journal: Journal | None = None, *, in_fleet: bool = False) -> None:
        self._table, self._journal = table, journal
        self._bounded = _BoundedCalls() if in_fleet else None
        self.is_refused = False
        """Nothing more goes to the database, which is at an older state."""
        self._retry_at = 0.0
        """Monotonic time before which the table is not tried, while the journal takes all."""
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Begun | Settlement | _Job | asyncio.Future[None] | None] = queue.SimpleQueue()
        self._dropped: set[str] = set()
        """Requests whose beginning was not written: their ends are not either."""
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
        """Requests are refused now, because their beginnings cannot be written."""
        return time.monotonic() - self._failed < FAILING_SECONDS

    @property
    def backlog(self) -> int:
        """Items that are not in a transaction yet."""
        return self._queue.qsize()

    @property
    def journalled(self) -> int:
        """Rows that wait in the journal for room on the database's disk."""
        return 0 if self._journal is None else len(self._journal)

    def begin(self, entry: Entry) -> "asyncio.Future[None]":
        """Done once it is committed or journalled. Raises Unavailable."""
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(lambda made: made.cancelled() or made.exception())  # its client may have left
        self._put((entry, done))
        return done

    def note(self, entry: Entry) -> None:
        """Begin as `begin` does, for a request that does not wait: it is committed soon."""
        self._queue.put((entry, None))

    def end(self, settled: Settlement, rider: Rider | None = None, *, soon: bool = False) -> None:
        """soon: it may be gathered with others, as what `note` got."""
        if rider is not None:
            self._riders[settled.entry.uid] = rider
        if soon:
            self._queue.put(settled)
        else:
            self._put(settled)

    async def flush(self) -> None:
        """Wait until what has come until now is committed, or the database did not answer."""
        if self._stopping.is_set():  # nothing reads the queue any more
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self._put(done)
        await done

    async def run(self, work: Callable[[], T]) -> T:
        """Run short work that writes this database, so that it never waits for the ledger, nor the ledger for it.

        Raises what the work raises, and Unavailable once the server stops.
        """
        if self._stopping.is_set():  # nothing reads the queue any more
            raise Unavailable("This server is shutting down.", code="shutting_down", retry_after=10)
        done: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # its waiter gets it
                self._loop.call_soon_threadsafe(_fail, done, error)
            else:
                self._loop.call_soon_threadsafe(_succeed, done, result)

        def refuse() -> None:
            self._loop.call_soon_threadsafe(_fail, done, _silent())

        self._put(_Job(run, refuse))
        return await done

    async def close(self) -> None:
        """Write what has come; what a database that does not answer keeps out is lost, and the log tells how much."""
        self._stopping.set()
        self._put(None)
        await asyncio.to_thread(self._thread.join)
        if self._journal is not None:
            self._journal.close()
        if self._bounded is not None:
            self._bounded.close()
        if self._deferred:
            log.warning("ends of lines were not written: they run again", extra={"lines": len(self._deferred)})

    def _put(self, item: "Begun | Settlement | _Job | asyncio.Future[None] | None") -> None:
        """Put a write into the next transaction."""
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
            except Exception as failure:  # whatever it is: requests wait for this thread
                if not fails:
                    log.error("the ledger cannot be written: requests are refused until it can", exc_info=failure)
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
            with suppress(Unavailable):  # it takes longer, and resolves its future then
                self._bounded.run(job.run)

    def _write(self, begun: list[Entry], ended: list[Settlement], *, again: bool) -> None:
        """Commit to the table, after what is in the journal; or to the journal while the disk is full.

        Raises as the table does, where the journal has no room either.
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
                log.error("the ledger's database takes no rows: requests are journalled until it does", exc_info=error)
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
        """Journal all but ends with riders, which are kept."""
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
        """Collect leftover and new items; waits for one where there is neither."""
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
        if not self._queue.empty():  # what is left may be urgent, and came before the flag was cleared
            self._urgent.set()
        return work

    def _pause(self) -> float | None:
        """Seconds to wait for rows before the journal is tried."""
        if not self._journal:
            return RETRY_SECONDS if self._deferred else None
        has_parts = len(self._journal) > MAX_BATCH and time.monotonic() >= self._retry_at
        return 0.0 if has_parts else RETRY_SECONDS

    def _undropped(self, work: _Work) -> list[Settlement]:
        """Ends that are to be written yet, once the beginnings of this transaction are given up."""
        dropped = {entry.uid for entry, _ in work.begun}
        self._dropped |= dropped - {one.entry.uid for one in work.ended}
        for one in work.ended:
            if one.entry.uid in dropped:
                self._end_rider(one)
        return [one for one in work.ended if one.entry.uid not in dropped]


def write_journal(table: LedgerTable, journal: Journal) -> None:
    """Commit all of it, some of which may be committed already. Raises as the table does."""
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
    """Calls that wait no longer than ANSWER_SECONDS, in a thread of their own. One at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ledger-database")
        self._last: Future[None] | None = None

    @property
    def is_late(self) -> bool:
        """Whether one still runs that took too long."""
        return self._last is not None and not self._last.done()

    def run(self, work: Callable[[], None]) -> None:
        """Raises what the work raises, and Unavailable where it, or one before it, takes longer."""
        if not self.is_late:
            self._last = self._pool.submit(work)
            if wait((self._last,), ANSWER_SECONDS).done:
                return self._last.result()
        raise _silent()

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _succeed(done: "asyncio.Future[T]", result: T) -> None:
    if not done.done():  # its waiter has left
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
        if done.done():  # its client has left
            continue
        if error is None:
            done.set_result(None)
        else:
            refused = Unavailable(
                "The ledger of requests cannot be written now. Try again.", code="ledger_unavailable", retry_after=5
            )
            done.set_exception(refused)
