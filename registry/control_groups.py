"""The kernel's control groups (cgroups) of a process, in which a container or a service of systemd has its limits.

Groups are nested, and a process need not live in the outermost one that it can see: every limit on the way counts.
"""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def folders(controller: str, pid: int | str = "self") -> list[Path]:
    """The group of a process and those around it, innermost first; empty when it is gone or there are none.

    controller: of cgroup v1, such as 'memory' or 'cpu'; version 2 has one group for all of them.
    """
    try:
        return nested(Path(f"/proc/{pid}/cgroup").read_text(), ROOT, controller)
    except OSError:
        return []


def nested(membership: str, root: Path, controller: str) -> list[Path]:
    """The same by the text of /proc/PID/cgroup, below `root`."""
    places = {controllers: path for _, controllers, path in (line.split(":", 2) for line in membership.splitlines())}
    old = next((path for controllers, path in places.items() if controller in controllers.split(",")), None)
    base, path = (root / controller, old) if old is not None else (root, places.get("", "/"))
    inner = [base.joinpath(*Path(path).parts[1 : end + 1]) for end in range(len(Path(path).parts) - 1, 0, -1)]
    # a container may see its own group as the outermost one, by a path that it does not have
    return [folder for folder in [*inner, base] if folder.is_dir()]
