"""Processes of one server run, found for certain: each was started with the run's id in its environment.

Process ids are used again by the kernel, so a recorded id alone proves nothing. The run's id is random, the
environment is inherited by every child and grandchild, and /proc shows it for as long as the process lives.
"""

import contextlib
import os
import secrets
import signal
import sys
import time

VARIABLE = "ROUNDHOUSE_SERVER_ID"
SWEEP_SECONDS = 10.0


def own_id() -> str | None:
    """This run's id, if this process was started with one of its own (a parent's does not count)."""
    found = os.environ.get(VARIABLE, "")
    return found if found.startswith(f"{os.getpid()}-") else None


def restart_with_id() -> None:
    """Start this process again (same process id, same arguments) with a run id in its environment. Does not return.

    The id must be in the environment from the start: what a process adds to its own later, /proc does not show, and
    the API process is a fork.
    """
    os.environ[VARIABLE] = f"{os.getpid()}-{secrets.token_hex(8)}"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def carries(pid: int, run: str) -> bool:
    """Whether a living process belongs to this run."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{VARIABLE}={run}".encode() in file.read().split(b"\0")
    except OSError:  # gone, or another user's
        return False


def members(run: str) -> set[int]:
    """The run's processes and all their descendants, without this process.

    A descendant is ours even if it was started with an environment of its own, as the checker of adapters is.
    """
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    children: dict[int, list[int]] = {}
    for pid in pids:
        children.setdefault(_parent(pid), []).append(pid)
    found = {pid for pid in pids if carries(pid, run)}
    waiting = list(found)
    while waiting:
        new = [child for child in children.get(waiting.pop(), ()) if child not in found]
        found.update(new)
        waiting += new
    return found - {os.getpid()}


def _parent(pid: int) -> int:
    """The parent's process id; 0 when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def is_tracker(pid: int) -> bool:
    """Whether it is multiprocessing's resource tracker: it clears /dev/shm after the others and ends by itself."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.resource_tracker" in file.read()
    except OSError:
        return False


def ended(pid: int) -> bool:
    """Whether a process has let go of everything, ports included.

    A zombie has, its parent just has not asked yet; unless it is only the first thread and others are still ending.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
        return state in "ZX" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except (OSError, IndexError):
        return True


def sweep(run: str) -> int:
    """End what is left of a run and wait until it is gone; returns how many processes that were.

    New ones that appear meanwhile are ended too.
    """
    deadline, killed = time.monotonic() + SWEEP_SECONDS, set[int]()
    while time.monotonic() < deadline:
        found = {pid for pid in members(run) if not is_tracker(pid)}
        for pid in found - killed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
        if not found and all(ended(pid) for pid in killed):
            break
        time.sleep(0.02)
    return len(killed)
