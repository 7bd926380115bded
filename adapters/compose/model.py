"""Merge base and adapter into one model folder, which appears complete or not at all."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from adapters.compose.jobs import ComposeProgress, Merge, compose
from registry.base import control_groups
from registry.base.threads import run_to_end
from registry.base.wording import size_words
from registry.errors import Unavailable
from registry.files.weights import read_weights
from registry.storage.files import sync_all, sync_folder

LIBRARIES = 1 << 30
"""Memory that the process needs in addition to the base's weights, in bytes."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Required bytes. The base is loaded once, in its own dtype, and written once."""

    memory: int
    disk: int

    @property
    def words(self) -> str:
        return f"about {size_words(self.memory)} of memory and {size_words(self.disk)} of disk"


def needs(base: Path) -> Needs:
    weights = read_weights(base).bytes
    return Needs(weights + LIBRARIES, weights)


def check_room(required: Needs, folder: Path) -> None:
    """Raise Unavailable (out_of_memory, disk_full) if memory or disk is too small."""
    free, group_limit = psutil.virtual_memory().available, control_groups.memory_left()
    if (free := free if group_limit is None else min(free, max(0, group_limit))) < required.memory:
        words = f"Merging needs about {size_words(required.memory)} of memory, and {size_words(free)} are free."
        raise Unavailable(words, code="out_of_memory", retry_after=60)
    if (free := shutil.disk_usage(folder).free) < required.disk:
        words = f"Merging needs about {size_words(required.disk)} of disk, and {size_words(free)} are free in {folder}."
        raise Unavailable(words, code="disk_full", retry_after=60)


async def merge_model(
    base: Path, adapter: Path, out: Path, *, trusted: bool, tell: Callable[[ComposeProgress], None] = lambda _: None
) -> int:
    """Write the merged model to `out`, which is new or empty, and return its bytes.

    Raises as `compose`, OSError.
    """
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        await compose(Merge(base=base, adapter=adapter, out=temporary, trust_remote_code=trusted), tell=tell)
        # nothing may be deleted under its thread
        return await run_to_end(asyncio.to_thread(_publish, temporary, out))
    finally:  # in a thread, since a hundred gigabytes take seconds
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, temporary, ignore_errors=True))


def _publish(temporary: Path, out: Path) -> int:
    """Publish a folder atomically, even across a loss of power."""
    temporary.chmod(0o755)
    sync_all(temporary)
    temporary.rename(out)
    sync_folder(out.parent)
    return size_of(out)


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files; 0 if it was just deleted."""
    with contextlib.suppress(FileNotFoundError):
        return sum(file.stat().st_size for file in folder.iterdir())
    return 0
