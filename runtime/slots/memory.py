"""Bytes that processes hold, from /proc."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

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
        self._peaks: dict[str, int] = {}
        self._held, self._until = 0, 0.0

    def read(self) -> int:
        """The most bytes that the group's processes have held; 0 when there are none. Blocks."""
        peaks = {}
        for process in _processes(self.group):
            with contextlib.suppress(OSError, ValueError):
                peaks[process.name] = _fields(process / "status").get("VmHWM", 0)
        if peaks != self._peaks or self._clock() >= self._until:
            self._held, self._peaks, self._until = group_bytes(self.group), peaks, self._clock() + REREAD_SECONDS
        return self._held


def group_bytes(group: int, at_most: bool = True) -> int:
    """The most that the processes of a group have held; else what they hold now. 0 when there are none.

    Of each: its proportional set size now (pages that it shares count by share), and for the most what its resident
    set was larger by at its largest. Blocks for about 10 ms for each GB.
    """
    total = 0
    for process in _processes(group):
        with contextlib.suppress(OSError, ValueError):  # it may end while we read
            total += _bytes(process, at_most)
    return total


def _processes(group: int) -> list[Path]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                if os.getpgid(int(name)) == group:
                    found.append(Path("/proc", name))
    return found


def _bytes(process: Path, at_most: bool) -> int:
    share = _fields(process / "smaps_rollup").get("Pss", 0)
    if not at_most:
        return share
    status = _fields(process / "status")
    return share + max(0, status.get("VmHWM", 0) - status.get("VmRSS", 0))


def _fields(file: Path) -> dict[str, int]:
    """Lines such as `VmRSS:  123 kB`, in bytes."""
    found = {}
    for line in file.read_text().splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    return found
