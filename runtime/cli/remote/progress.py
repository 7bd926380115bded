"""Progress bars on standard error, drawn only on a terminal."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from runtime.cli.failures import Failure
from runtime.cli.remote.client import Client, part

POLL_SECONDS = 0.2


class Bar(Protocol):
    def show(self, text: str, fraction: float) -> None: ...

    def open(self, path: Path) -> BinaryIO:
        """A file to send, drawn as it is read."""
        ...


class NoBar:
    """Where nobody looks."""

    def show(self, text: str, fraction: float) -> None:
        pass

    def open(self, path: Path) -> BinaryIO:
        return path.open("rb")


class RichBar:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        self.progress = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
        self._task = self.progress.add_task("", total=1.0)

    def show(self, text: str, fraction: float) -> None:
        self.progress.update(self._task, description=text, total=1.0, completed=fraction)

    def open(self, path: Path) -> BinaryIO:
        self.progress.update(self._task, description=f"sending {path.name}")
        return self.progress.open(path, "rb", task_id=self._task)


@contextmanager
def bar(wanted: bool = True) -> Iterator[Bar]:
    """A bar that disappears at the end."""
    if not wanted or not sys.stderr.isatty():
        yield NoBar()
        return
    shown = RichBar()
    with shown.progress:
        yield shown


class Watch:
    """Draws a model's load while another request waits for it."""

    def __init__(self, url: str, model: str, shown: Bar) -> None:
        self._url, self._model, self._bar = url, model, shown
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Self:
        if not isinstance(self._bar, NoBar):
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(2)

    def _poll(self) -> None:
        # The request that waits for the load tells what is wrong; here it only means that there is nothing to draw.
        with contextlib.suppress(Failure), Client(self._url) as client:
            while not self._over.wait(POLL_SECONDS):
                view = client.get(f"/v1/models/{part(self._model)}")
                state, found = str(view.get("state")), view.get("progress")
                if found:
                    self._bar.show(f"{view['id']}: {found['phase']}", found["percent"] / 100)
                else:
                    self._bar.show(f"{view['id']}: {state}", 1.0 if state == "ready" else 0.0)
