"""Pointer files that git leaves in place of large files until git-lfs fetches them."""

from pathlib import Path

FAULT = "is a pointer of git-lfs, and not the file itself: run 'git lfs pull' in the repository."
_BEGINNING = b"version https://git-lfs.github.com/spec/"
LENGTH = 64
"""Bytes of a file that are enough to recognise a pointer."""


def is_pointer(beginning: bytes) -> bool:
    return beginning.startswith(_BEGINNING)


def is_pointer_file(file: Path) -> bool:
    """Return whether a file is a pointer; False if it cannot be read."""
    try:
        with file.open("rb") as stream:
            return is_pointer(stream.read(LENGTH))
    except OSError:
        return False
