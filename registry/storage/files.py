"""Folders and files that only this user may read. Those of an earlier release, which others could, are closed."""

import os
from pathlib import Path

FOLDER_MODE, FILE_MODE = 0o700, 0o600


def make_private(folder: Path) -> None:
    """Make it, or close it to others. What is not ours to change stays as it is: its owner decides."""
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    _close(folder, FOLDER_MODE)


def make_private_file(path: Path) -> None:
    """The same for a file. What SQLite puts beside its own gets its mode."""
    path.touch(mode=FILE_MODE)
    _close(path, FILE_MODE)
    for beside in path.parent.glob(f"{path.name}-*"):
        _close(beside, FILE_MODE)


def _close(path: Path, mode: int) -> None:
    found = path.stat()
    if found.st_mode & 0o777 & ~mode and found.st_uid == os.geteuid():
        path.chmod(found.st_mode & mode)
