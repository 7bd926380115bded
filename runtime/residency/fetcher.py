"""Files that are not on this machine yet: fetched when their model is first wanted, once for all who wait for it."""

import asyncio
from collections.abc import Callable, Coroutine

from models.messages import Progress
from registry.errors import RoundhouseError, Unavailable
from runtime.residency.entry import ModelEntry
from runtime.residency.table import S, Table, log, map_error

Fetch = Callable[[ModelEntry, Callable[[int, int | None], None]], Coroutine[None, None, None]]
"""Brings a model's files and has the entry filled in; tells the bytes that have come and all bytes, if known."""


class ModelFetcher:
    """
    | step            | from           | to      |
    |-----------------|----------------|---------|
    | start           | ABSENT, FAILED | LOADING |
    | the files came  | LOADING        | ABSENT  |
    | they did not    | LOADING        | FAILED  |

    The model holds no memory meanwhile. How much it needs is known only afterwards, so then it is ABSENT again for the
    moment in which its load is planned.

    Args:
        fetch: None where all files are there.
        decide: called when they have come, or did not.
    """

    def __init__(self, table: Table, decide: Callable[[], None], fetch: Fetch | None) -> None:
        self._table, self._decide, self.fetch = table, decide, fetch
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def cancel(self, entry: ModelEntry) -> bool:
        """Stop bringing its files, if that is under way. What has come stays for the next try."""
        task = self._under_way.get(entry.id)
        if task is not None:
            task.cancel()
        return task is not None

    def start(self, entry: ModelEntry) -> bool:
        """Whether its files are missing; if so they are on their way from now on."""
        if entry.path is not None or self.fetch is None:
            return False
        entry.to(S.LOADING)
        entry.progress = Progress(phase="fetching", fraction=0.0)
        self._table.spawn(self._bring(entry, self.fetch), f"fetch-{entry.id}")
        return True

    async def _bring(self, entry: ModelEntry, fetch: Fetch) -> None:
        def report(come: int, whole: int | None) -> None:  # from the download's threads: one assignment, nothing else
            fraction = min(1.0, come / whole) if whole else 0.0
            entry.fetched = (come, whole)
            entry.progress = Progress(phase="fetching", fraction=fraction, detail=f"{come >> 20} MiB")

        task = self._under_way[entry.id] = asyncio.create_task(fetch(entry, report))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():  # the server stops
                task.cancel()
                raise
            self._did_not_come(entry, Unavailable("The download was cancelled.", code="download_cancelled"))
        except Exception as error:
            self._did_not_come(entry, map_error(error, "download"))
        else:
            entry.progress, entry.failures = None, []  # of tries before this one
            entry.to(S.ABSENT)
        finally:
            self._under_way.pop(entry.id, None)
            entry.fetched = None
        self._table.note_change()
        self._decide()

    def _did_not_come(self, entry: ModelEntry, error: RoundhouseError) -> None:
        log.error("fetching failed", extra={"model": entry.id, "cause": error.message})
        entry.progress, entry.requested_since = None, None
        entry.to(S.FAILED)
        failure = entry.fail(error)
        self._table.observer.load_failed(entry, error)
        wait = max(failure.until - failure.at, error.retry_after or 0.0)
        entry.queue.refuse(Unavailable(error.message, code=error.code, retry_after=wait))
