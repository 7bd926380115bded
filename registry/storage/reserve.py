"""The part of the data directory's disk that is reserved for the ledger and the state."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from registry.base.wording import size_words
from registry.errors import Unavailable

LEAST, MOST = 64 << 20, 1 << 30
"""Bounds of the default, in bytes."""
RETRY_AFTER = 60.0


class DiskReserve:
    """Refuses writes that would leave less than `size` bytes free on the disk of `folder`. Thread-safe.

    size: default 1 % of the disk, at least 64 MiB, at most 1 GiB, and never more than a quarter of it.
    """

    def __init__(self, folder: Path, size: int | None = None) -> None:
        self._folder, self._size = folder, size
        self._held, self._lock = 0, Lock()

    def measure(self) -> tuple[int, int]:
        """Return the disk's free bytes and how many are reserved; no free bytes if the folder is missing."""
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return 0, self._size or 0
        total = disk.f_frsize * disk.f_blocks
        size = min(max(LEAST, total // 100), MOST, total // 4) if self._size is None else self._size
        return disk.f_frsize * disk.f_bavail, size

    def covers(self, folder: Path) -> bool:
        """Return whether `folder`, which need not exist yet, is on the same disk."""
        place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        return self._folder.exists() and os.stat(place).st_dev == os.stat(self._folder).st_dev

    @property
    def is_short(self) -> bool:
        """Whether uploads are refused, or will be soon."""
        free, size = self.measure()
        return free < size + size // 8

    def take(self, count: int) -> None:
        """Reserve `count` bytes until `give_back`. Raises Unavailable (storage_full)."""
        with self._lock:
            if self._room() < count:
                raise self.full_error()
            self._held += count

    def give_back(self, count: int) -> None:
        """Release bytes reserved by `take`, once they are written or will not be."""
        with self._lock:
            self._held -= count

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """Reserve `count` bytes while they are written. Raises Unavailable (storage_full)."""
        self.take(count)
        try:
            yield
        finally:
            self.give_back(count)

    @contextmanager
    def hold_pair(self, most: int, source: int) -> Iterator[int]:
        """Reserve two files of equal size, and yield that size: at most `most`, or a quarter of the free room.

        source: bytes of the input, and so the least size. Raises Unavailable (storage_full).
        """
        with self._lock:
            each = min(most, self._room() // 4)
            if each < source:
                raise self.full_error()
            self._held += 2 * each
        try:
            yield each
        finally:
            self.give_back(2 * each)

    def full_error(self) -> Unavailable:
        free, size = self.measure()
        return Unavailable(
            f"The data directory's disk is full: {size_words(free)} are free, and {size_words(size)} of them are "
            "reserved for the ledger and the state (--disk-reserve). Nothing was stored. Remove adapters, or ask the "
            "server's operator for room.",
            code="storage_full",
            retry_after=RETRY_AFTER,
        )

    def _room(self) -> int:
        free, size = self.measure()
        return free - size - self._held
