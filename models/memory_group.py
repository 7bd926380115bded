"""The kernel's memory group (cgroup) of a process: its limit, and whom the kernel kills when memory runs out.

Groups are nested, and a process need not live in the outermost one that it can see: a service of systemd, for instance,
has its limit and its counters further down. psutil knows neither these groups nor `oom_score_adj`.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from models import process_group

ROOT = Path("/sys/fs/cgroup")
SERVES, LOADS = 100, 1000
"""How much sooner, in thousandths of the memory there is, the kernel shall kill a slot than it would by size alone.

So it is a load that ends when memory runs out, before models that serve; and never the gateway before a slot.
"""


def folders(pid: int | str = "self") -> list[Path]:
    """The group of a process and those around it, innermost first; empty when it is gone or there are none."""
    try:
        return nested(Path(f"/proc/{pid}/cgroup").read_text(), ROOT)
    except OSError:
        return []


def nested(membership: str, root: Path) -> list[Path]:
    """The same by the text of /proc/PID/cgroup, below `root`; cgroup v2 or v1."""
    places = {controllers: path for _, controllers, path in (line.split(":", 2) for line in membership.splitlines())}
    old = next((path for controllers, path in places.items() if "memory" in controllers.split(",")), None)
    base, path = (root / "memory", old) if old is not None else (root, places.get("", "/"))
    inner = [base.joinpath(*Path(path).parts[1 : end + 1]) for end in range(len(Path(path).parts) - 1, 0, -1)]
    # a container may see its own group as the outermost one, by a path that it does not have
    return [folder for folder in [*inner, base] if folder.is_dir()]


def limit() -> int | None:
    """Bytes that this process's groups allow it: the least of all limits, cgroup v2 or v1. None: no limit."""
    found = []
    for folder in folders():
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError):
                text = (folder / name).read_text().strip()
                if text.isdigit() and int(text) < 1 << 60:
                    found.append(int(text))
    return min(found, default=None)


class Kills:
    """Whether the kernel has killed a process in a process's group, for want of memory, since the last `look`.

    Of this machine, where the process has no group that counts.
    """

    def __init__(self, pid: int | str = "self") -> None:
        self._files = [folder / name for folder in folders(pid)[:1] for name in ("memory.events", "memory.oom_control")]
        self._files.append(Path("/proc/vmstat"))
        self.look()

    def look(self) -> None:
        self._seen = self._count()

    def risen(self) -> bool:
        return self._count() > self._seen

    def _count(self) -> int:
        for file in self._files:
            with contextlib.suppress(OSError):
                for line in file.read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0


class Expendable:
    """This process and those of its group of processes, as the kernel shall see them when memory runs out."""

    def __init__(self) -> None:
        self._own = self._read("self")

    def serves(self) -> None:
        self._set(SERVES)

    @contextlib.contextmanager
    def loads(self) -> Iterator[None]:
        """Inside it, processes that are forked inherit it; afterwards all of them are as those that serve."""
        self._set(LOADS)
        try:
            yield
        finally:
            self._set(SERVES)

    def _set(self, more: int) -> None:
        for process in process_group.members(os.getpgrp()):
            with contextlib.suppress(OSError):  # it has ended, or is not ours
                Path(f"/proc/{process.pid}/oom_score_adj").write_text(str(min(1000, self._own + more)))

    def _read(self, pid: str) -> int:
        try:
            return int(Path("/proc", pid, "oom_score_adj").read_text())
        except OSError:
            return 0


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is Python's or torch's out of memory. Does not import torch."""
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__
    return False
