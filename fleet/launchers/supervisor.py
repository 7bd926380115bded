"""Supervise a server that an actor starts or adopts; see the table in the package."""

from typing import Literal, NamedTuple

from fleet.launchers.processes import LaunchSpec, ProcessLauncher, ProcessRecord, RecordFile

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before an ended server is restarted, doubled each time."""
STEADY_SECONDS = 60.0
"""Uptime of a server after which the pauses start from the shortest again."""

Step = Literal["keep", "start", "wait"]


class Starts(NamedTuple):
    """An actor's record of the starts so far."""

    last: float | None = None
    """Time of the last start by the actor's monotonic clock; None before the first, and for a steady server."""
    in_a_row: int = 0
    """Number of consecutive starts after which the server ended before STEADY_SECONDS."""


def decide(record: ProcessRecord | None, is_ended: bool, starts: Starts, now: float) -> Step:
    """Return the next action for a server."""
    if record is not None and not is_ended:
        return "keep"
    if starts.last is None or record is None:
        return "start"
    return "start" if now - starts.last >= pause(starts.in_a_row) else "wait"


def pause(in_a_row: int) -> float:
    """Return the seconds between two starts."""
    return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(in_a_row, 10)))


class Supervisor:
    """Keeps one server running. For one thread; `now` is the caller's monotonic clock in seconds."""

    def __init__(self, launcher: ProcessLauncher, spec: LaunchSpec, file: RecordFile) -> None:
        self._launcher, self._spec, self._file = launcher, spec, file
        self._starts = Starts()

    def step(self, now: float) -> ProcessRecord | None:
        """Start the server if due. Returns its process, or None while it waits for a restart."""
        record = self._file.read()
        is_ended = record is None or self._launcher.has_ended(record)
        step = decide(record, is_ended, self._starts, now)
        if step == "keep" and self._starts.last is not None and now - self._starts.last >= STEADY_SECONDS:
            self._starts = Starts()
        if step == "start":
            self._starts = Starts(now, 0 if self._starts.last is None else self._starts.in_a_row + 1)
            record = self._launcher.start(self._spec)
            self._file.write(record)
        return None if step == "wait" else record

    def end(self, seconds: float) -> None:
        """End the server. `step` would start it again."""
        record = self._file.read()
        if record is not None:
            self._launcher.end(record, seconds)
        self._file.remove()
