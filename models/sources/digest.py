"""A fingerprint of a model folder's content, fast enough to take at every start."""

import hashlib
from functools import lru_cache
from pathlib import Path

WHOLE = 256 * 2**20
"""Folders of up to this many bytes are read in full (all-MiniLM-L6-v2, 87 MB: about a tenth of a second)."""
BLOCK = 2**20
BLOCKS = 64
"""Larger files count by their size, first and last MiB and 62 MiB between, evenly spread."""
COUNTED = (".safetensors", ".json", ".txt", ".bin", ".model", ".jinja", ".tiktoken", ".py")


def digest(folder: Path) -> str:
    """64 hex digits over names, sizes and content of all files that an engine may read, or run (trust_remote_code).

    Two folders of less than 256 MiB have the same digest exactly when they hold the same files. Above, two sets of
    weights that differ in only a few places may agree: pin such models by hub revision. Cached by names, sizes and
    times of change.
    """
    files = sorted(file for file in folder.rglob("*") if file.suffix in COUNTED and file.is_file())
    facts = tuple((str(f.relative_to(folder)), f.stat().st_size, f.stat().st_mtime_ns) for f in files)
    return _digest(folder.resolve(), facts)


@lru_cache(maxsize=256)
def _digest(folder: Path, facts: tuple[tuple[str, int, int], ...]) -> str:
    whole = sum(size for _, size, _ in facts) <= WHOLE
    total = hashlib.sha256()
    for name, size, _ in facts:
        total.update(f"{name}\0{size}\0".encode())
        with (folder / name).open("rb") as stream:
            if whole or size <= BLOCKS * BLOCK:
                total.update(hashlib.file_digest(stream, "sha256").digest())
            else:
                for step in range(BLOCKS):
                    stream.seek((size - BLOCK) * step // (BLOCKS - 1))
                    total.update(stream.read(BLOCK))
    return total.hexdigest()
