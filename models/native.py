"""Compile our C files at first use. The server also runs without them."""

import hashlib
import os
import platform
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from registry.base.processor import features
from registry.storage.files import sync_all


def cache_folder(name: str) -> Path:
    """Return folder `name` in the user's cache directory. Raises RuntimeError without a home."""
    path = platformdirs.user_cache_path("roundhouse") / name
    if not path.is_absolute():
        raise RuntimeError("this user has no home folder: set HOME or XDG_CACHE_HOME")
    return path


def is_ours(folder: Path) -> bool:
    """Create a folder. Returns False if that fails or others could write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except (OSError, RuntimeError):
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


SECONDS = 120
"""Longest time that a compiler may take."""


def build(folder: Path, name: str, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    """Compile `sources` to `name`-<digest>.so in `folder`, unless it exists.

    They may include any header in their folder. The compiler is `CC`, or else `cc`. Raises OSError if there is none or
    others may write to the folder, subprocess.SubprocessError if compiling fails.
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    headers = {header for source in sources for header in source.parent.glob("*.h")}
    texts = [source.read_bytes() for source in (*sources, *sorted(headers))]
    # `-march=native` depends on the processor, and a home folder may be shared by different machines.
    inputs = (texts, compiler, tuple(flags), platform.machine(), sorted(features()))
    digest = hashlib.sha256(repr(inputs).encode()).hexdigest()[:24]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # its error says more, such as that the disk is read-only
    if not is_ours(folder):
        raise PermissionError(f"{folder} must be a folder that only its owner, this user, can write to")
    target = folder / f"{name}-{digest}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        output = Path(scratch) / target.name
        subprocess.run(
            [*compiler, *flags, "-o", str(output), *map(str, sources)], check=True, capture_output=True, timeout=SECONDS
        )
        sync_all(Path(scratch))  # a loss of power must not leave a partial library
        output.replace(target)
    return target


def explain(fault: BaseException) -> str:
    """Return `fault` with the first line of the compiler's output."""
    output = (getattr(fault, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
    return " ".join([str(fault), *output[:1]])
