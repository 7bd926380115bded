"""Small file systems for tests of full disks."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def fill(folder: Path) -> Path:
    """Fill the file system with one file, and return it."""
    with suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return folder / "filler"


@contextmanager
def mount_small(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of `size`, such as 8m, at the new `folder`. Skips the test if that is not permitted."""
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]).returncode:
        pytest.skip("mounting a tmpfs needs a right that this process does not have")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
