"""Facts from the kernel about a slot's processes: exit reasons and memory."""

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
from models.process_control import OomKills
from runtime.slots.link import UNKNOWN, Cause

EXIT_CODE = 49
"""Place of exit_code among the fields after the name in /proc/PID/stat (proc_pid_stat(5), field 52)."""

INFO = struct.Struct("<QQ11Ii")
"""`struct pidfd_info` of <linux/pidfd.h>, up to the exit code, which is last; what was found out comes first."""
INFO_EXIT = 1 << 3
GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11


KILLED_MEANWHILE = Cause("out_of_memory", "its process ended, and the kernel has killed because memory had run out")


def hold(pid: int) -> int | None:
    """Open a file descriptor of the process for `cause_of`; None: there is none."""
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None


def cause_of(pid: int, kills: OomKills, handle: int | None = None) -> Cause:
    """The reason why process `pid` is ending or has just ended.

    kills: of its memory group, last looked at while it lived. held: what `hold` gave.
    """
    code = _exit_code(pid)
    if code is None and handle is not None:
        code = _exit_code_of_handle(handle)
    if code is None:  # a gateway that is short of memory itself comes too late to read it
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
    """The exit code after the parent has read it; None: this kernel does not store it."""
    answer = bytearray(INFO.size)
    struct.pack_into("<Q", answer, 0, INFO_EXIT)
    try:
        fcntl.ioctl(handle, GET_INFO, answer)
    except OSError:
        return None
    mask, *_, code = INFO.unpack(answer)
    return code if mask & INFO_EXIT else None


def _exit_code(pid: int) -> int | None:
    """The exit code as waitpid gives it; None: gone already, or not ending."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        code = int(fields[EXIT_CODE])
    except (OSError, ValueError, IndexError):
        return None
    return code if code or fields[0] in "ZX" else None


REREAD_SECONDS = 60.0
"""Seconds after which a `GroupPeak` reads again: what a process shares counts for more once another has ended."""


class GroupPeak:
    """The result of `group_bytes`, cached for heartbeats.

    A full read walks all pages of the processes, and meanwhile their calls that map memory wait: a request of 20 ms
    would feel it.
    """

    def __init__(self, group: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.group = group
        self._clock = clock
        self._peaks: dict[int, int] = {}
        self._held, self._until = 0, 0.0

    def read(self) -> int:
        """The most bytes that the group's processes have held; 0: none. Blocks."""
        peaks = {}
        for process in process_control.group_members(self.group):
            with contextlib.suppress(OSError):
                peaks[process.pid] = _peak(process.pid)
        if peaks != self._peaks or self._clock() >= self._until:
            self._held, self._peaks, self._until = group_bytes(self.group), peaks, self._clock() + REREAD_SECONDS
        return self._held


def group_bytes(group: int, at_most: bool = True) -> int:
    """The most a group's processes have held, else what they hold now; 0: none.

    Of each: its proportional set size now (pages that it shares count by share), and for the most what its resident
    set was larger by at its largest. Blocks for about 10 ms for each GB.
    """
    total = 0
    for process in process_control.group_members(group):
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
