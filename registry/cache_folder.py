"""The user's cache folder: what can be made again, kept for the next start."""

import os
import stat
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Where `name` belongs in the user's cache directory (XDG). It need not exist; RuntimeError without any home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roundhouse" / name


def is_ours(folder: Path) -> bool:
    """Make the folder. False when it cannot be made, or when somebody else could put files into it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, RuntimeError):
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
