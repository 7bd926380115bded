"""The control groups (cgroups) of a process, which hold a container's limits.

Groups are nested, and the limits of all groups from the innermost to the outermost visible one apply.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def folders(controller: str, pid: int | str = "self") -> list[Path]:
    """Return the process's groups, innermost first; empty if it has ended or has none.

    controller: of cgroup v1, such as 'memory' or 'cpu'; version 2 has one group for all controllers.
    """
    try:
        return nested(Path(f"/proc/{pid}/cgroup").read_text(), ROOT, controller)
    except OSError:
        return []


def nested(membership: str, root: Path, controller: str) -> list[Path]:
    """Return the groups named in the text of /proc/PID/cgroup, below `root`."""
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in membership.splitlines())}
    old = next((path for controllers, path in paths.items() if controller in controllers.split(",")), None)
    base, path = (root / controller, old) if old is not None else (root, paths.get("", "/"))
    inner = [base.joinpath(*Path(path).parts[1 : end + 1]) for end in range(len(Path(path).parts) - 1, 0, -1)]
    # a container may see its own group as the outermost one, although the path is the host's
    return [folder for folder in [*inner, base] if folder.is_dir()]


# --- memory ----------------------------------------------------------------------------------------------------------
def memory_limits(groups: Iterable[Path]) -> list[tuple[Path, int]]:
    """Return the groups that have a limit, and its bytes; cgroup v2 or v1."""
    limits = []
    for folder in groups:
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError):
                text = (folder / name).read_text().strip()
                if text.isdigit() and int(text) < 1 << 60:
                    limits.append((folder, int(text)))
    return limits


def memory_left() -> int | None:
    """Return the bytes that this process's groups still allow, or None if there is no limit."""
    return min((most - _used(folder) for folder, most in memory_limits(folders("memory"))), default=None)


def _used(folder: Path) -> int:
    """Return the bytes used by a group, without reclaimable page cache."""
    used = cached = 0
    for name in ("memory.current", "memory.usage_in_bytes"):
        with contextlib.suppress(OSError):
            used = int((folder / name).read_text())
    with contextlib.suppress(OSError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                cached = max(cached, int(value))
    return used - cached


class OomKills:
    """Detects whether the kernel killed a process of the control group since `reset`.

    Without such a group, any process on this machine counts.
    """

    def __init__(self, pid: int | str = "self") -> None:
        self._files = [
            folder / name for folder in folders("memory", pid)[:1] for name in ("memory.events", "memory.oom_control")
        ]
        self._files.append(Path("/proc/vmstat"))
        self.reset()

    def reset(self) -> None:
        self._seen = self._count()

    def has_killed(self) -> bool:
        return self._count() > self._seen

    def _count(self) -> int:
        for file in self._files:
            with contextlib.suppress(OSError):
                for line in file.read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0
