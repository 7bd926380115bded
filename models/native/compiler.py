"""C sources compiled on the machine they run on: once, into the user's cache folder."""

import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from models.native.cache_folder import is_ours
from registry.base.processor import features
from registry.storage.files import sync_all

SECONDS = 120
"""Longest time that a compiler may take."""


def build(folder: Path, name: str, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    """Compile `sources` to `name`-<digest>.so in `folder`, unless it was done for them and this processor before.

    They may include any header that lies beside them.

    The compiler is what `CC` names, else `cc`. Raises OSError when there is none or the folder is not safely ours,
    subprocess.SubprocessError when it fails.
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    headers = {header for source in sources for header in source.parent.glob("*.h")}
    texts = [source.read_bytes() for source in (*sources, *sorted(headers))]
    # `-march=native` depends on the processor, and a home folder may be shared by different machines.
    inputs = (texts, compiler, tuple(flags), platform.machine(), sorted(features()))
    made = hashlib.sha256(repr(inputs).encode()).hexdigest()[:24]
    if not is_ours(folder):
        raise PermissionError(f"{folder} must be a folder that only its owner, this user, can write to")
    target = folder / f"{name}-{made}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        output = Path(scratch) / target.name
        subprocess.run(
            [*compiler, *flags, "-o", str(output), *map(str, sources)], check=True, capture_output=True, timeout=SECONDS
        )
        sync_all(Path(scratch))  # half of it, after a loss of power, would be code that engines run
        output.replace(target)
    return target


def explain(fault: BaseException) -> str:
    """`fault` with the first line of what the compiler said."""
    output = (getattr(fault, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
    return " ".join([str(fault), *output[:1]])
