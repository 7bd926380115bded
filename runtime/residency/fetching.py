"""Files that are not on this machine yet: fetched when their model is first wanted, once for all who wait for it.

The model is LOADING meanwhile and holds no memory. How much it needs is known only afterwards, so then it is ABSENT
again for the moment in which its load is planned.
"""

from collections.abc import Awaitable, Callable

from models.messages import Progress
from registry.errors import RoundhouseError, Unavailable
from runtime.residency.entry import ModelEntry
from runtime.residency.recovery import Recovery
from runtime.residency.table import S, log

Fetch = Callable[[ModelEntry, Callable[[int, int | None], None]], Awaitable[None]]
"""Brings a model's files and fills in the entry; tells the bytes that have come and all bytes, if known."""


class Fetching(Recovery):
    fetch: Fetch | None = None

    def _must_fetch(self, entry: ModelEntry) -> bool:
        """Whether its files are missing; if so they are on their way from now on."""
        if entry.path is not None or self.fetch is None:
            return False
        entry.to(S.LOADING)
        entry.progress = Progress(phase="fetching", fraction=0.0)
        self._spawn(self._bring(entry, self.fetch), f"fetch-{entry.id}")
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
            self._observer.load_failed(entry, error)
            wait = max(failure.until - failure.at, error.retry_after or 0.0)
            entry.queue.refuse(Unavailable(error.message, code=error.code, retry_after=wait))
        else:
            entry.progress = None
            entry.to(S.ABSENT)
        self._note_change()
        self.decide()
