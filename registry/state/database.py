"""What survives a restart: adapters, aliases, pins and measured figures, in SQLite under one data directory."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from registry.state.adapters import AdapterTable
from registry.state.models import ModelTable
from registry.state.schema import StateDatabase


class State:
    """Opens (and makes, and migrates) `directory`/state.db.

    Safe to call from several threads; every call is well under a millisecond, save `sync`. A commit survives
    SIGKILL at once; call `sync` (in a thread) before you promise a client that it survives a power failure too.
    With `read_only` the file is neither made nor migrated nor written: for a look beside the server that has it.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time, *, read_only: bool = False) -> None:
        self._database = StateDatabase(directory, read_only=read_only)
        self.path = self._database.path
        self.adapters = AdapterTable(self._database, clock)
        self.routers = AdapterTable(self._database, clock, routers=True)
        self.models = ModelTable(self._database, clock)

    def sync(self) -> None:
        """Bring every commit made so far to the disk (one fsync)."""
        self._database.sync()

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()
