"""The disk space of uploads that are arriving or wait for a turn."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from registry.bounds import Bounds
from registry.errors import QueueFull
from registry.storage.reserve import DiskReserve

UPLOAD_RETRY = 5.0
UploadOwner = tuple[str, str]
"""A group of uploads with a common bound: its kind, as in "of your team", and its id."""


class UploadShare:
    """The share of one upload. owners: bytes that each owner may use. reserve: of the disk that it is written to."""

    def __init__(self, held: Counter[UploadOwner], owners: Mapping[UploadOwner, int], reserve: DiskReserve | None):
        self._held, self._owners, self._reserve = held, owners, reserve
        self.size = 0
        self._unwritten = 0

    def add(self, count: int) -> None:
        """Count bytes before they are written. Raises QueueFull, Unavailable (storage_full)."""
        for owner, most in self._owners.items():
            if self._held[owner] + count > most:
                raise QueueFull(
                    f"Uploads {owner[0]} that are under way hold {self._held[owner]} bytes, and {most} is what they "
                    "may hold together (see --bounds-factor): try again.",
                    code="uploads_full",
                    retry_after=UPLOAD_RETRY,
                )
        if self._reserve is not None:
            self._reserve.take(count)
            self._unwritten += count
        self._count(count)

    def written(self) -> None:
        """Note that all counted bytes are on disk, or never will be."""
        if self._reserve is not None:
            self._reserve.give_back(self._unwritten)
            self._unwritten = 0

    def end(self) -> None:
        self.written()
        self._count(-self.size)

    def _count(self, count: int) -> None:
        self.size += count
        for owner in self._owners:
            self._held[owner] += count
            if not self._held[owner]:
                del self._held[owner]


class Uploads:
    """Bytes of all uploads on disk, whether still arriving or waiting for a turn.

    A bound per upload is not enough, since thousands may wait and each has its file.

    Args:
        most: bytes of all uploads together.
        largest: bytes of one upload. No share is smaller.
        bounds: bounds of each upload.
        reserve: disk space that uploads must leave free.
    """

    def __init__(self, most: int, largest: int, bounds: Bounds, reserve: DiskReserve) -> None:
        self.bounds = bounds
        self._most, self._largest, self._reserve = most, min(most, largest), reserve
        self._held: Counter[UploadOwner] = Counter()

    @property
    def held(self) -> int:
        """Bytes of all uploads together."""
        return max(self._held.values(), default=0)

    @contextmanager
    def share(self, folder: Path, owners: Mapping[UploadOwner, float]) -> Iterator[UploadShare]:
        """Share for an upload to `folder`. owners: groups it counts for, and the part of `most` that each may use."""
        bounds = {owner: max(int(self._most * part), self._largest) for owner, part in owners.items()}
        share = UploadShare(self._held, bounds, self._reserve if self._reserve.covers(folder) else None)
        try:
            yield share
        finally:
            share.end()
