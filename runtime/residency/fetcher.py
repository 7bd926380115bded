"""Files that are not on this machine yet: fetched when their model is first wanted, once for all who wait for it."""

from collections.abc import Awaitable, Callable

from models.messages import Progress
from registry.errors import RoundhouseError, Unavailable
from runtime.residency.entry import ModelEntry
from runtime.residency.table import S, Table, log

Fetch = Callable[[ModelEntry, Callable[[int, int | None], None]], Awaitable[None]]
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

    def start(self, entry: ModelEntry) -> bool:
        """Whether its files are missing; if so they are on their way from now on."""
        if entry.path is not None or self.fetch is None:
            return False
        entry.to(S.LOADING)
        entry.progress = Progress(phase="fetching", fraction=0.0)
        self._table.spawn(self._bring(entry, self.fetch), f"fetch-{entry.id}")
        return True

    async def _bring(self, entry: ModelEntry, fetch: Fetch) -> None:
        def told(come: int, whole: int | None) -> None:  # from the download's threads: one assignment, nothing else
            fraction = min(1.0, come / whole) if whole else 0.0
            entry.progress = Progress(phase="fetching", fraction=fraction, detail=f"{come >> 20} MiB")

        try:
            await fetch(entry, told)
        except RoundhouseError as error:
            log.error("fetching failed", extra={"model": entry.id, "cause": error.message})
            entry.progress, entry.wanted_since = None, None
            entry.to(S.FAILED)
            failure = entry.fail(error)
            self._table.observer.load_failed(entry, error)
            wait = max(failure.until - failure.at, error.retry_after or 0.0)
            entry.queue.refuse(Unavailable(error.message, code=error.code, retry_after=wait))
        else:
            entry.progress = None
            entry.to(S.ABSENT)
        self._table.note_change()
        self._decide()
