"""The processes of one server run, identified by the run's id in their environment.

The kernel reuses process ids, so a recorded id alone proves nothing. The run's id is random, the environment is
inherited by all descendants, and /proc shows it as long as the process lives.

psutil is imported only when needed, because `entry` restarts the command before anything is imported.
"""

import contextlib
import os
import secrets
import signal
import sys
import time
from typing import TYPE_CHECKING

from registry.base.child import with_our_packages

if TYPE_CHECKING:
    import psutil

VARIABLE = "ROUNDHOUSE_SERVER_ID"
SWEEP_SECONDS = 10.0


def own_id() -> str | None:
    """Return this run's id, unless it is a parent's."""
    result = os.environ.get(VARIABLE, "")
    return result if result.startswith(f"{os.getpid()}-") else None


def restart_with_id() -> None:
    """Restart this process in place, with a run id. Does not return.

    The id must be in the environment from the start: /proc does not show later changes by the process itself, and the
    API process is a fork. The same environment lets every process of the server find our packages, and read files as
    UTF-8 in any locale: under another encoding, libraries would misread templates and vocabularies, or fail.
    """
    os.environ.update(with_our_packages(os.environ))
    os.environ["PYTHONUTF8"] = "1"
    os.environ.pop("PYTHONOPTIMIZE", None)  # transformers reads docstrings, and libraries rely on `assert`
    if "error" in os.environ.get("PYTHONWARNINGS", ""):  # libraries warn of themselves, and would fail
        del os.environ["PYTHONWARNINGS"]
    os.environ[VARIABLE] = f"{os.getpid()}-{secrets.token_hex(8)}"
    for number in range(3):  # if a service manager closed them, files opened next would be taken for them
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if sys.stderr is None or not sys.stderr.isatty():  # a reload waits until the server can do it, and does not end it
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def carries(process: "psutil.Process", run: str) -> bool:
    """Return whether a running process belongs to this run."""
    import psutil

    try:
        return process.environ().get(VARIABLE) == run
    except (psutil.Error, OSError):  # gone, or another user's
        return False


def alive(pid: int, run: str) -> bool:
    """Return whether this process is running and belongs to this run."""
    import psutil

    try:
        return carries(psutil.Process(pid), run)
    except psutil.NoSuchProcess:
        return False


def members(run: str) -> "set[psutil.Process]":
    """Return the run's processes and all their descendants, without this process.

    A descendant counts even if it was started with another environment, like the checker of adapters.
    """
    import psutil

    result = {process for process in psutil.process_iter() if carries(process, run)}
    for process in list(result):
        with contextlib.suppress(psutil.NoSuchProcess):
            result.update(process.children(recursive=True))
    return result - {psutil.Process()}


def is_tracker(process: "psutil.Process") -> bool:
    """Return whether it is multiprocessing's resource tracker, which ends by itself."""
    import psutil

    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def sweep(run: str) -> int:
    """End the remaining processes of a run and wait until they are gone. Returns their number.

    New ones that appear in the meantime are ended, too.
    """
    import psutil

    from models.process_control import has_ended

    deadline, killed = time.monotonic() + SWEEP_SECONDS, set[psutil.Process]()
    while time.monotonic() < deadline:
        result = {process for process in members(run) if not is_tracker(process)}
        for process in result - killed:
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed |= result
        if not result and all(has_ended(process) for process in killed):
            break
        time.sleep(0.02)
    return len(killed)
