"""A file that a cancelled request's thread still writes."""

import asyncio
import os
import threading
from io import BufferedWriter, RawIOBase
from pathlib import Path
from typing import Any

import pytest

from runtime.http import upload
from runtime.http.upload import new_file

CONTENT = b"content" * 10_000


class SlowDisk(RawIOBase):
    """Writes only once it may."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self.has_begun, self.may_write = threading.Event(), threading.Event()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.has_begun.set()
        self.may_write.wait()
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()
        super().close()


async def test_a_file_is_closed_only_after_the_write_that_a_cancelled_request_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(tmp_path / "file")
    monkeypatch.setattr(upload, "_create", lambda path, make_folder: BufferedWriter(disk))

    def write(file: BufferedWriter) -> None:
        file.write(CONTENT)
        file.flush()

    async def request() -> None:
        async with new_file(tmp_path / "file") as file:
            await asyncio.to_thread(write, file)

    running = asyncio.create_task(request())
    await asyncio.to_thread(disk.has_begun.wait)
    running.cancel()
    for _ in range(100):
        await asyncio.sleep(0.001)
    assert not running.done()
    assert not disk.closed, "its descriptor could be somebody else's while the thread writes"
    disk.may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert disk.closed
    assert (tmp_path / "file").read_bytes() == CONTENT


async def test_a_new_file_is_private_and_never_another_one(tmp_path: Path) -> None:
    async with new_file(tmp_path / "folder" / "file", make_folder=True) as file:
        await asyncio.to_thread(file.write, b"text")
        assert os.stat(file.fileno()).st_mode & 0o777 == 0o600
        assert not os.get_inheritable(file.fileno())
        with pytest.raises(FileExistsError):
            async with new_file(tmp_path / "folder" / "file"):
                pass
    assert (tmp_path / "folder" / "file").read_bytes() == b"text"
