"""Bytes that processes hold, from /proc."""

import contextlib
from pathlib import Path


def group_bytes(group: int, at_most: bool = True) -> int:
    """The most that the processes of a group have held; else what they hold now. 0 when there are none.

    Of each: its proportional set size now (pages that it shares count by share), and for the most what its resident
    set was larger by at its largest. Blocks for about 10 ms for each GB.
    """
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it may end while we read
                if int((entry / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                    total += _bytes(entry, at_most)
    return total


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
