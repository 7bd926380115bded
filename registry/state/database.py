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
    """The state of one data directory: `directory`/state.db, or a schema on PostgreSQL (`url`, as `--database`).

    It is created and migrated when opened; with `read_only` neither, for a look beside a running server.

    Safe to call from several threads. A server calls what waits for the database in threads: a PostgreSQL may hang for
    as long as `registry.storage.postgres` says. Changes survive a loss of power, but measurements may lose the last
    seconds.
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
        for read in (self.adapters.all, self.routers.all, self.models.pins):  # later reads come from memory
            read()

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()
