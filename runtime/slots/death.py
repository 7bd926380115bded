"""How a slot's process ended, as far as the gateway can know: it is not the parent, so the kernel tells by /proc
(psutil gives exit codes of own children only).

The exit code stands in /proc from the moment in which a process begins to end until its parent has asked for it, which
LitServe does every 2 s. The slot's socket closes after the former, so whoever sees it close reads the code in time, if
the event loop is not late. Afterwards Linux tells it who has held the process by a file descriptor, from 6.15 on.
"""

import contextlib
import fcntl
import os
import signal
import struct
from pathlib import Path

from models.memory_group import OomKills
from runtime.slots.link import UNKNOWN, Cause

EXIT_CODE = 49
"""Place of exit_code among the fields after the name in /proc/PID/stat (proc_pid_stat(5), field 52)."""

INFO = struct.Struct("<QQ11Ii")
"""`struct pidfd_info` of <linux/pidfd.h>, up to the exit code, which is last; what was found out comes first."""
INFO_EXIT = 1 << 3
GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11


KILLED_MEANWHILE = Cause("out_of_memory", "its process ended, and the kernel has killed because memory had run out")


def hold(pid: int) -> int | None:
    """A file descriptor of the process, for `cause_of`; None where there is no such thing, or no such process."""
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None


def cause_of(pid: int, kills: OomKills, handle: int | None = None) -> Cause:
    """Why process `pid` is ending or has just ended.

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
    """The same, once its parent has asked; None on a kernel that does not keep it."""
    answer = bytearray(INFO.size)
    struct.pack_into("<Q", answer, 0, INFO_EXIT)
    try:
        fcntl.ioctl(handle, GET_INFO, answer)
    except OSError:
        return None
    mask, *_, code = INFO.unpack(answer)
    return code if mask & INFO_EXIT else None


def _exit_code(pid: int) -> int | None:
    """As waitpid would give it; None when the process is gone already, or is not ending at all."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        code = int(fields[EXIT_CODE])
    except (OSError, ValueError, IndexError):
        return None
    return code if code or fields[0] in "ZX" else None
