"""Bytes that all uploads hold on disk together, those that still come and those whose request waits for its turn."""

from collections.abc import Iterator
from contextlib import contextmanager

from registry.bounds import Bounds
from registry.errors import QueueFull

RETRY_AFTER = 5.0


class UploadShare:
    """Of one upload."""

    def __init__(self, uploads: "Uploads") -> None:
        self._uploads = uploads
        self.size = 0

    def add(self, count: int) -> None:
        """Before so many more bytes are kept. Raises QueueFull."""
        if self._uploads.held + count > self._uploads.most:
            raise QueueFull(
                f"Uploads that are under way hold {self._uploads.held} bytes, and {self._uploads.most} is what all may "
                "hold together (--max-uploads): try again.",
                code="uploads_full",
                retry_after=RETRY_AFTER,
            )
        self._uploads.held += count
        self.size += count


class Uploads:
    """Of one server. A bound per upload is not enough: thousands may wait, and each has its file."""

    def __init__(self, most: int, bounds: Bounds) -> None:
        """bounds: of each."""
        self.most, self.held, self.bounds = most, 0, bounds

    @contextmanager
    def share(self) -> Iterator[UploadShare]:
        share = UploadShare(self)
        try:
            yield share
        finally:
            self.held -= share.size
