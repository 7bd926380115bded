"""The user's cache folder: what can be made again, kept for the next start."""

import os
import stat
from pathlib import Path

import platformdirs


def cache_folder(name: str) -> Path:
    """Where `name` belongs in the user's cache directory. It need not exist; RuntimeError without any home."""
    path = platformdirs.user_cache_path("roundhouse") / name
    if not path.is_absolute():
        raise RuntimeError("this user has no home folder: set HOME or XDG_CACHE_HOME")
    return path


def is_ours(folder: Path) -> bool:
    """Make the folder. False when it cannot be made, or when somebody else could put files into it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except (OSError, RuntimeError):
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
