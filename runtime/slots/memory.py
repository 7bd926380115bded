"""Bytes that the processes of a group hold."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from models import process_group

REREAD_SECONDS = 60.0
"""After this long a `GroupPeak` reads anew: what a process shares counts for more once another has ended."""


class GroupPeak:
    """What `group_bytes` tells, for a heartbeat: read anew only when a process came, or holds more than ever before.

    A full read walks all pages of the processes, and meanwhile their calls that map memory wait: a request of 20 ms
    would feel it.
    """

    def __init__(self, group: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.group = group
        self._clock = clock
        self._peaks: dict[int, int] = {}
        self._held, self._until = 0, 0.0

    def read(self) -> int:
        """The most bytes that the group's processes have held; 0 when there are none. Blocks."""
        peaks = {}
        for process in process_group.members(self.group):
            with contextlib.suppress(OSError):
                peaks[process.pid] = _peak(process.pid)
        if peaks != self._peaks or self._clock() >= self._until:
            self._held, self._peaks, self._until = group_bytes(self.group), peaks, self._clock() + REREAD_SECONDS
        return self._held


def group_bytes(group: int, at_most: bool = True) -> int:
    """The most that the processes of a group have held; else what they hold now. 0 when there are none.

    Of each: its proportional set size now (pages that it shares count by share), and for the most what its resident
    set was larger by at its largest. Blocks for about 10 ms for each GB.
    """
    total = 0
    for process in process_group.members(group):
        with contextlib.suppress(OSError, psutil.Error):  # it may end while we read
            total += _bytes(process, at_most)
    return total


def _bytes(process: psutil.Process, at_most: bool) -> int:
    held = process.memory_full_info()
    return held.pss + (max(0, _peak(process.pid) - held.rss) if at_most else 0)


def _peak(pid: int) -> int:
    """The most that was resident of a process. psutil does not tell it on Linux."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
