"""Pointers that git leaves in place of large files where git-lfs has not fetched them."""

from pathlib import Path

FAULT = "is a pointer of git-lfs, and not the file itself: run 'git lfs pull' in the repository."
_BEGINNING = b"version https://git-lfs.github.com/spec/"
LENGTH = 64
"""Bytes of a file that show whether it is one."""


def is_pointer(beginning: bytes) -> bool:
    return beginning.startswith(_BEGINNING)


def is_pointer_file(file: Path) -> bool:
    """Whether a file that can be read is a pointer."""
    try:
        with file.open("rb") as stream:
            return is_pointer(stream.read(LENGTH))
    except OSError:
        return False
