"""The storage of files' bytes. Blocking calls; safe to use from several threads."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

CHUNK = 1 << 18
"""Bytes that are read at a time."""


class FileBytes(Protocol):
    """| call          | a file that is stored       | an unknown one    |
    |---------------|-----------------------------|-------------------|
    | store         | replaced                    | stored            |
    | read, chunks  | the bytes                   | FileNotFoundError |
    | local_path    | a path for another process  | FileNotFoundError |
    | delete        | removed                     | nothing           |
    """

    @property
    def incoming(self) -> Path:
        """Folder for uploads under way."""
        ...

    def store(self, file_id: str, source: Path) -> None:
        """Take over a complete file from `incoming`; durable on return. Raises OSError, Unavailable."""
        ...

    def read(self, file_id: str, offset: int, length: int) -> bytes:
        """Bytes of one line."""
        ...

    def chunks(self, file_id: str, start: int, end: int) -> Iterator[bytes]:
        """Bytes from `start` up to, without, `end`."""
        ...

    def local_path(self, file_id: str) -> AbstractContextManager[Path]:
        """The file as a path, for as long as the context lasts."""
        ...

    def delete(self, file_id: str) -> None: ...

    def remove_orphans(self) -> int:
        """Remove bytes that a crash left without a row, while files are added. Returns how many files went."""
        ...

    def keep_only(self, file_ids: Collection[str]) -> int:
        """Remove all other bytes and unfinished uploads; for a start. Returns how many files went."""
        ...
