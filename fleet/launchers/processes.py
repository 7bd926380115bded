"""Processes that outlive their parent, and are found again by a record in a file."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from models.process_control import has_ended
from registry.base.json import NOT_JSON
from registry.storage.files import write_text

BOOT = Path("/proc/sys/kernel/random/boot_id")
RAYS_OWN = ("RAY_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
"""Prefixes of variables that Ray sets for its workers. A server must see all cores and devices."""
SYSTEMD = Path("/run/systemd/system")
"""Exists if systemd runs the machine."""
_SCOPE = ("systemd-run", "--scope", "--collect", "--quiet", "--")
"""Moves a process out of Ray's systemd service, if any, with which systemd would end it."""
_START = 'setsid "$@" </dev/null >>"$0" 2>&1 & echo $!'
"""The shell ends at once, so the process has no parent: Ray kills the children of an actor that ends."""


class ProcessRecord(msgspec.Struct, frozen=True):
    pid: int
    created: float
    """Time of its start, in clock ticks since the machine's boot, because process ids are reused."""
    boot: str
    """The machine's boot id."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A process to start. Its output is appended to the file `log`."""

    words: Sequence[str]
    environment: Mapping[str, str]
    log: Path


class ProcessLauncher:
    """Starts and ends processes on this machine."""

    def start(self, spec: LaunchSpec) -> ProcessRecord:
        scope = _SCOPE if SYSTEMD.exists() and os.geteuid() == 0 else ()
        command = ["/bin/sh", "-c", _START, str(spec.log), *scope, *spec.words]
        pid = int(subprocess.run(command, env=dict(spec.environment), stdout=subprocess.PIPE, check=True).stdout)
        try:
            created = _started(pid)
        except OSError:  # it ended at once; the log says why
            created = 0.0
        return ProcessRecord(pid, created, boot())

    def has_ended(self, process: ProcessRecord) -> bool:
        living = _living(process)
        return living is None or has_ended(living)

    def end(self, process: ProcessRecord, seconds: float) -> None:
        """Terminate the process, kill its session after `seconds`, and return once it has ended."""
        living = _living(process)
        if living is None:
            return
        with suppress(psutil.NoSuchProcess):
            living.terminate()
        wait_until(lambda: has_ended(living), seconds)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        wait_until(lambda: has_ended(living), seconds)


def _living(process: ProcessRecord) -> psutil.Process | None:
    if process.boot != boot():
        return None
    try:
        return psutil.Process(process.pid) if process.created == _started(process.pid) else None
    except (psutil.NoSuchProcess, OSError):
        return None


def _started(pid: int) -> float:
    """Return a process's start in clock ticks since boot (proc_pid_stat(5), field 22). Raises OSError if it is gone."""
    return float(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def wait_until(is_done: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition, for a bounded time. Returns whether it came true."""
    deadline = time.monotonic() + seconds
    while not (done := is_done()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return done


def boot() -> str:
    """Return the id of this machine's boot."""
    return BOOT.read_text().strip()


def without_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without Ray's variables for its workers."""
    return {name: value for name, value in environment.items() if not name.startswith(RAYS_OWN)}


class RecordFile:
    """The record of one process in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> ProcessRecord | None:
        """Read the record, or return None if it is missing or damaged."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=ProcessRecord)
        except (FileNotFoundError, *NOT_JSON):
            return None

    def write(self, record: ProcessRecord) -> None:
        write_text(self._path, msgspec.json.encode(record).decode())

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
