"""Ledger rows that wait on disk while the database accepts none.

The file is allocated at its full size, so that it needs no space on a full disk later.

| operation             | effect                                                                                   |
|-----------------------|------------------------------------------------------------------------------------------|
| `append`              | adds beginnings and ends to the file; killing the server loses none                      |
| `drop`                | the database has some of them; the file still contains all                               |
| `clear`               | the database has all of them; the file counts as empty, at its full size                 |
| restart after a kill  | reads the file, and writes to the database what it does not have                         |

Layout: a 4-byte number that `clear` increments, then frames of length, CRC-32 and MessagePack. The number seeds the
CRC-32, which invalidates the frames from before a `clear`.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import msgspec

from tenants.ledger.rows import Entry, Settlement

MOST, MOST_IN_FLEET = 8 << 20, 64 << 20
"""Size in bytes, but at most a sixteenth of the disk. A request takes about 1,200."""
_HEAD, _FRAME = struct.Struct("<I"), struct.Struct("<II")
_rows = msgspec.msgpack.Decoder(tuple[list[Entry], list[Settlement]])


class Journal:
    """Rows on disk, for use by one thread. begun, ended: its rows, in order.

    most: upper bound of the file size in bytes. Raises OSError if the file cannot be allocated.
    """

    def __init__(self, path: Path, most: int = MOST) -> None:
        disk = os.statvfs(path.parent)
        self._size = min(most, disk.f_frsize * disk.f_blocks // 16)
        self.begun, self.ended = list[Entry](), list[Settlement]()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            content = os.pread(self._file, max(self._size, os.fstat(self._file).st_size), 0)
            os.posix_fallocate(self._file, 0, self._size)
        except OSError:
            os.close(self._file)
            raise
        self._number, self._end = int.from_bytes(content[: _HEAD.size], "little"), _HEAD.size
        while (frame := self._frame(content)) is not None:
            begun, ended = _rows.decode(frame)
            self.begun += begun
            self.ended += ended
            self._end += _FRAME.size + len(frame)

    def __len__(self) -> int:
        return len(self.begun) + len(self.ended)

    def append(self, begun: Sequence[Entry], ended: Sequence[Settlement]) -> bool:
        """Append rows. Returns False without writing anything if they do not fit. Raises OSError."""
        if not begun and not ended:
            return True
        data = msgspec.msgpack.encode((begun, ended))
        if self._end + _FRAME.size + len(data) > self._size:
            return False
        os.pwrite(self._file, _FRAME.pack(len(data), crc32(data, self._number)) + data, self._end)
        self._end += _FRAME.size + len(data)
        self.begun += begun
        self.ended += ended
        return True

    def first(self, most: int) -> tuple[Sequence[Entry], Sequence[Settlement]]:
        """Return the first rows, at most `most`: beginnings, or ends if no beginning is left."""
        return (self.begun[:most], ()) if self.begun else ((), self.ended[:most])

    def drop(self, begun: int, ended: int) -> None:
        """Drop the first rows from memory. A restart reads them again."""
        del self.begun[:begun]
        del self.ended[:ended]

    def clear(self) -> None:
        """Drop all rows. Raises OSError."""
        if self._end > _HEAD.size:
            self._number = (self._number + 1) % 2**32
            os.pwrite(self._file, _HEAD.pack(self._number), 0)
            self._end = _HEAD.size
            self.begun, self.ended = [], []

    def close(self) -> None:
        os.close(self._file)

    def _frame(self, content: bytes) -> bytes | None:
        """Return the next complete frame, if any."""
        if self._end + _FRAME.size > len(content):
            return None
        length, check = _FRAME.unpack_from(content, self._end)
        data = content[self._end + _FRAME.size :][:length]
        return data if data and crc32(data, self._number) == check else None
