"""What the kernel knows about a slot's processes: exit reasons and memory."""

import contextlib
import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from models import process_control
from registry.base.control_groups import OomKills
from runtime.slots.link import UNKNOWN, Cause

EXIT_CODE = 49
"""Index of exit_code among the fields after the name in /proc/PID/stat (proc_pid_stat(5), field 52)."""

INFO = struct.Struct("<QQ11Ii")
"""`struct pidfd_info` of <linux/pidfd.h> from the result mask to the exit code."""
INFO_EXIT = 1 << 3
GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11


KILLED_MEANWHILE = Cause("out_of_memory", "its process ended, and the kernel had killed because memory had run out")


def hold(pid: int) -> int | None:
    """Open a file descriptor of the process for `cause_of`; None if that is not possible."""
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None


def cause_of(pid: int, kills: OomKills, handle: int | None = None) -> Cause:
    """Return the reason why process `pid` is ending or has just ended.

    kills: of its memory group, last reset while it was alive. handle: from `hold`.
    """
    code = _exit_code(pid)
    if code is None and handle is not None:
        code = _exit_code_of_handle(handle)
    if code is None:  # a gateway that is itself short of memory may be too late to read it
        return KILLED_MEANWHILE if kills.has_killed() else UNKNOWN
    number = code & 0x7F
    if not number:
        return Cause("exited", f"its process ended with status {code >> 8}")
    if number == signal.SIGKILL and kills.has_killed():
        return Cause("out_of_memory", "the kernel killed its process because memory had run out")
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return Cause("killed", f"its process was ended by {name}", number)


def _exit_code_of_handle(handle: int) -> int | None:
    """Return the exit code after the parent has read it; None if this kernel does not store it."""
    answer = bytearray(INFO.size)
    struct.pack_into("<Q", answer, 0, INFO_EXIT)
    try:
        fcntl.ioctl(handle, GET_INFO, answer)
    except OSError:
        return None
    mask, *_, code = INFO.unpack(answer)
    return code if mask & INFO_EXIT else None


def _exit_code(pid: int) -> int | None:
    """Return the exit code as waitpid does; None if the process is already gone or not ending."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        code = int(fields[EXIT_CODE])
    except (OSError, ValueError, IndexError):
        return None
    return code if code or fields[0] in "ZX" else None


REREAD_SECONDS = 60.0
"""Seconds after which a `GroupPeak` reads again. Shared pages count for more once another process has ended."""


class GroupPeak:
    """The result of `group_bytes`, cached for heartbeats.

    A full read walks all pages of the processes. During that time their calls that map memory wait, which would delay
    a request of 20 ms noticeably.
    """

    def __init__(self, group: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.group = group
        self._clock = clock
        self._peaks: dict[int, int] = {}
        self._held, self._until = 0, 0.0

    def read(self) -> int:
        """Return the most bytes that the group's processes have held; 0 if none. Blocks."""
        peaks = {}
        for process in process_control.group_members(self.group):
            with contextlib.suppress(OSError):
                peaks[process.pid] = _peak(process.pid)
        if peaks != self._peaks or self._clock() >= self._until:
            self._held, self._peaks, self._until = group_bytes(self.group), peaks, self._clock() + REREAD_SECONDS
        return self._held


def group_bytes(group: int, at_most: bool = True) -> int:
    """Return the most bytes that a group's processes have held, or with `at_most=False` hold now; 0 if none.

    Counts for each process its current proportional set size (shared pages count by share); for the peak, plus the
    difference between its largest and its current resident set. Blocks for about 10 ms per GB.
    """
    total = 0
    for process in process_control.group_members(group):
        with contextlib.suppress(OSError, psutil.Error):  # it may end while we read
            total += _bytes(process, at_most)
    return total


def _bytes(process: psutil.Process, at_most: bool) -> int:
    memory = process.memory_full_info()
    return memory.pss + (max(0, _peak(process.pid) - memory.rss) if at_most else 0)


def _peak(pid: int) -> int:
    """Return the peak resident bytes of a process, which psutil does not report on Linux."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
