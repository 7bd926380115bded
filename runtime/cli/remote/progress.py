"""Progress bars on standard error, drawn only on a terminal."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

from runtime.cli.failures import Failure
from runtime.cli.remote.client import Client, part

POLL_SECONDS = 0.2


class Bar:
    def __init__(self, *, is_drawn: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        console = Console(stderr=True)
        self.is_drawn = is_drawn
        self.progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not is_drawn)
        self._task = self.progress.add_task("", total=1.0)

    def show(self, text: str, fraction: float) -> None:
        self.progress.update(self._task, description=text, total=1.0, completed=fraction)

    def open(self, path: Path) -> BinaryIO:
        """Open a file to send, showing progress as it is read."""
        self.progress.update(self._task, description=f"sending {path.name}")
        return self.progress.open(path, "rb", task_id=self._task)


@contextmanager
def bar(enabled: bool = True) -> Iterator[Bar]:
    """Show a bar that disappears at the end."""
    progress_bar = Bar(is_drawn=enabled and sys.stderr.isatty())
    with progress_bar.progress if progress_bar.is_drawn else contextlib.nullcontext():
        yield progress_bar


class Watch:
    """Draws a model's load while another request waits for it."""

    def __init__(self, url: str, model: str, progress_bar: Bar) -> None:
        self._url, self._model, self._bar = url, model, progress_bar
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Self:
        if self._bar.is_drawn:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(2)

    def _poll(self) -> None:
        # Errors are reported by the request that waits for the load; here they only mean that nothing can be shown.
        with contextlib.suppress(Failure), Client(self._url) as client:
            while not self._over.wait(POLL_SECONDS):
                view = client.get(f"/v1/models/{part(self._model)}")
                state, result = str(view.get("state")), view.get("progress")
                if result:
                    self._bar.show(f"{view['id']}: {result['phase']}", result["percent"] / 100)
                else:
                    self._bar.show(f"{view['id']}: {state}", 1.0 if state == "ready" else 0.0)
