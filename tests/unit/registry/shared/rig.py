"""The states of a fleet's servers, on shared tables."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from registry.state.database import State
from registry.state.shared.opening import SharedTables, open_shared
from registry.state.shared.watch import SharedWatch
from tests.eventually import eventually


class Sharer:
    """A server's state, and the watch that keeps it up to date."""

    def __init__(self, url: str, schema: str, folder: Path, stack: ExitStack) -> None:
        self.tables: SharedTables = open_shared(url, schema)
        self.state = stack.enter_context(State(folder, shared=self.tables))
        self.changes = 0
        self.changed = threading.Event()
        self._watch = SharedWatch(self.tables, self.state, self._on_change)
        stack.callback(self._watch.close)

    def watch(self) -> "Sharer":
        """Start the watch. Returns when it listens, so that no poll is needed to see changes."""
        self._watch.start()
        eventually(lambda: self._watch.is_listening)
        return self

    def _on_change(self) -> None:
        self.changes += 1
        self.changed.set()


class Sharers:
    def __init__(self, url: str, schema: str, folder: Path, stack: ExitStack) -> None:
        self.url, self.schema, self._folder, self._stack = url, schema, folder, stack
        self._count = 0

    def server(self) -> Sharer:
        self._count += 1
        return Sharer(self.url, self.schema, self._folder / f"server-{self._count}", self._stack)


@contextmanager
def sharers(url: str, schema: str, folder: Path) -> Iterator[Sharers]:
    with ExitStack() as stack:
        yield Sharers(url, schema, folder, stack)
