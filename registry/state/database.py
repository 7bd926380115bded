"""What survives a restart: adapters, aliases, pins and measured figures, of one data directory."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from registry.state.adapters import AdapterTable, RouterTable
from registry.state.models import ModelTable
from registry.state.opening import FILE, look, open_state


class State:
    """Opens (and makes, and migrates) `directory`/state.db, or what is kept of it on PostgreSQL: url, as `--database`.

    Safe to call from several threads. What waits for the database is called in threads by who serves requests: a
    PostgreSQL may hang, and is waited for as long as `registry.storage.postgres` says. What a call has changed
    survives a loss of power, but for measured figures, which may lose the last seconds.
    With `read_only` nothing is made or migrated: for a look beside the server that has it.
    """

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float] = time.time,
        *,
        url: str | None = None,
        read_only: bool = False,
    ) -> None:
        """Raises Conflict for another version's database, Unavailable, BadRequest; with `read_only` also NotFound."""
        self.path = directory / FILE
        self._database = look(directory, url) if read_only else open_state(directory, url)
        self._database.set_timeouts()
        self.adapters = AdapterTable(self._database, clock, alone=not read_only)
        self.routers = RouterTable(self._database, clock, alone=not read_only)
        self.models = ModelTable(self._database, clock, alone=not read_only)
        for read in (self.adapters.all, self.routers.all, self.models.pins):  # who asks for these waits no more
            read()

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()
