"""Protocol of the storage of files' bytes. Calls block and are thread-safe."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

CHUNK = 1 << 18
"""Bytes per read."""


class FileBytes(Protocol):
    """| call          | a file that is stored            | an unknown one    |
    |---------------|----------------------------------|-------------------|
    | store         | replaces it                      | stores it         |
    | read, chunks  | returns bytes                    | FileNotFoundError |
    | local_path    | yields a path for a process      | FileNotFoundError |
    | delete        | removes it                       | does nothing      |
    """

    @property
    def incoming(self) -> Path:
        """Folder for unfinished uploads."""
        ...

    def store(self, file_id: str, source: Path) -> None:
        """Take over a complete file from `incoming`. It is durable on return. Raises OSError, Unavailable."""
        ...

    def read(self, file_id: str, offset: int, length: int) -> bytes:
        """Return the bytes of one line."""
        ...

    def chunks(self, file_id: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` to `end`, without `end`."""
        ...

    def local_path(self, file_id: str) -> AbstractContextManager[Path]:
        """Provide the file as a path for the duration of the context."""
        ...

    def delete(self, file_id: str) -> None: ...

    def remove_orphans(self) -> int:
        """Remove bytes that a crash left without a row, while files may be added. Returns the number of files."""
        ...

    def keep_only(self, file_ids: Collection[str]) -> int:
        """Remove all other bytes and unfinished uploads, at startup. Returns the number of files."""
        ...
