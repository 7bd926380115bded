"""Print results on standard output, and everything else on standard error."""

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runtime.cli.failures import Failure

if TYPE_CHECKING:
    from rich.console import Console


PIPE_WIDTH = 200
"""Columns if the output is not a terminal. Tables there are as wide as they need."""


def emit(data: Any) -> None:
    """Print JSON on standard output: indented for a terminal, one line for a pipe."""
    print(json.dumps(data, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None), flush=True)


def show(answer: Any, as_json: bool, display: Callable[[Any], object]) -> None:
    """Print an answer as JSON if `as_json`, otherwise for people with `display`."""
    (emit if as_json else display)(answer)


def note(text: str) -> None:
    """Print a line on standard error, ignoring errors such as a full disk."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def say(text: str, level: int = logging.INFO, **fields: str) -> None:
    """Print a line for the server: a note on a terminal, otherwise a line of its log with fields."""
    if sys.stderr.isatty():
        note(text)
        return
    from runtime.config import logs

    line = logging.LogRecord("roundhouse.serve", level, __file__, 0, text, None, None)
    line.__dict__.update(fields)
    logs.handler(sys.stderr).handle(line)


def print_failure(failure: Failure, as_json: bool) -> None:
    """Print a failure and its faults; with --json also as an object."""
    note(f"error: {failure.message}")
    for fault in failure.faults:
        if fault in failure.message:  # already printed
            continue
        note(f"  {fault}")
    if as_json:
        result = {"message": failure.message, "status": failure.status, "code": failure.code}
        error = {"error": {**result, "faults": list(failure.faults), "exit_code": failure.exit_code}}
        with contextlib.suppress(OSError):  # standard output itself may have failed, such as on a full disk
            emit(error if failure.document is None else failure.document)


def console() -> "Console":
    """Return standard output as a rich console."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise  # handled in `main`

    return Output(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a plain table. `right`: the columns with numbers.

    On a narrow terminal all columns except these and the first are wrapped, so that names and numbers can be copied.
    In a pipe each row is one line.
    """
    result = list(rows)
    if not result:
        note("(none)")
    if not sys.stdout.isatty():
        _lines(columns, result, right)
        return
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    grid, screen = Table(box=None, pad_edge=False, header_style="bold"), console()
    for index, column in enumerate(columns):
        is_kept_whole = index == 0 or column in right
        longest = max((cell_len(row[index]) for row in result), default=0)
        grid.add_column(
            column,
            justify="right" if column in right else "left",
            min_width=min(longest, screen.width // 2) if is_kept_whole else None,
            overflow="fold",
        )
    for row in result:
        grid.add_row(*(Text(cell) for cell in row))
    screen.print(grid, crop=False)


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich.cells import cell_len

    whole = [tuple(columns), *(tuple(" ".join(cell.splitlines()) for cell in row) for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*whole, strict=True)]
    for row in whole:
        padded = []
        for column, cell, width in zip(columns, row, widths, strict=True):
            blank = " " * (width - cell_len(cell))
            padded.append(blank + cell if column in right else cell + blank)
        print("  ".join(padded).rstrip())


def pairs(values: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    result = list(values)
    width = max(len(name) for name, _ in result)
    for name, value in result:
        print(f"{name:<{width}}  {value}")


def size(count: int | None) -> str:
    """Format bytes for people, in powers of 1024."""
    if count is None:
        return "-"
    import humanize

    return humanize.naturalsize(count, binary=True)


def ago(moment: float | None) -> str:
    """Format the age of a time in seconds since the epoch."""
    if not moment:
        return "never"
    import humanize

    return humanize.naturaltime(max(0.0, time.time() - moment))


def unless_hidden(view: Mapping[str, Any], text: str) -> str:
    """Return `text` about usage, unless the server hides usage from this key or does not know it."""
    return "not shown to this key, or by a front" if view["running"] is None else text


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def short(digest: str) -> str:
    """Shorten a digest to twelve digits, which is enough to name a version."""
    kind, _, digits = digest.partition(":")
    return f"{kind}:{digits[:12]}" if digits else digest
