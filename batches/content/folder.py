"""Bytes of files in a folder of the data directory, one file each."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from batches.content.protocol import CHUNK
from registry.storage.files import FILE_MODE, give, make_private, sync_folder

FOLDER = "files"
INCOMING = "incoming"


class FolderBytes:
    """`batches.content.protocol.FileBytes`, for servers on SQLite."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER

    @property
    def incoming(self) -> Path:
        return self._folder / INCOMING

    def store(self, file_id: str, source: Path) -> None:
        make_private(self._folder)
        handle = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fchmod(handle, FILE_MODE)
            give(handle, self._folder)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(source, self._path(file_id))
        sync_folder(self._folder)

    def read(self, file_id: str, offset: int, length: int) -> bytes:
        handle = os.open(self._path(file_id), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(handle, length, offset)
        finally:
            os.close(handle)

    def chunks(self, file_id: str, start: int, end: int) -> Iterator[bytes]:
        with self._path(file_id).open("rb") as file:
            file.seek(start)
            while start < end and (data := file.read(min(CHUNK, end - start))):
                start += len(data)
                yield data

    @contextmanager
    def local_path(self, file_id: str) -> Iterator[Path]:
        path = self._path(file_id)
        path.stat()
        yield path

    def delete(self, file_id: str) -> None:
        self._path(file_id).unlink(missing_ok=True)

    def remove_orphans(self) -> int:
        return 0  # `keep_only` removes them, because no other server uses this folder

    def keep_only(self, file_ids: Collection[str]) -> int:
        if not self._folder.is_dir():
            return 0
        for half in self.incoming.iterdir() if self.incoming.is_dir() else ():
            half.unlink(missing_ok=True)
        unused = [path for path in self._folder.iterdir() if path.is_file() and path.name not in file_ids]
        for path in unused:
            path.unlink(missing_ok=True)
        return len(unused)

    def _path(self, file_id: str) -> Path:
        """Return the path of a file. Its id is ours: letters, digits, hyphens and underscores."""
        assert file_id.replace("-", "").replace("_", "").isalnum(), "not one of our ids"
        return self._folder / file_id
