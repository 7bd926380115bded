"""Names of the shared memory with which several workers on a CPU exchange results.

vLLM removes a name when its process ends by itself. A slot's processes are killed, so the names would stay, with up to
8 MiB of memory for each load. Once the workers have opened the memory they need no name.
"""

import os
import tempfile
from contextlib import suppress
from glob import escape
from pathlib import Path

SHARED = Path("/dev/shm")
PREFIX = "vllm_dist_"
"""Prefix of the file through which workers meet, in the temporary folder. Their memory has its name, and a suffix."""


def groups() -> frozenset[str]:
    """Return the names of the groups of workers that have met in this process's temporary folder."""
    return frozenset(path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


def remove_names(groups: frozenset[str], shared: Path = SHARED) -> None:
    """Remove the names of these groups' memory, which is freed when the last worker ends."""
    for group in groups:
        for path in shared.glob(f"{escape(group)}-*"):
            with suppress(OSError):
                path.unlink()


def missing_hint(error: Exception, shared: Path = SHARED) -> str:
    """Say what to do about an error that has no file's name because there is no shared memory; '' for others."""
    if not isinstance(error, OSError) or error.filename is not None or os.access(shared, os.W_OK):
        return ""
    return f". This machine has no {shared} that the server may write: mount a tmpfs there."
