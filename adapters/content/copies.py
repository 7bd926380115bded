"""Send a stored adapter as one stream of bytes to another server.

    length of the config (8 bytes, little-endian) | adapter_config.json | adapter_model.safetensors

All functions block on the disk; run them in a thread.
"""

import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from adapters.content.digest import SALT
from adapters.content.forms import CONFIG, MOST, TENSORS
from registry.errors import Unfit
from registry.storage.files import sync_folder, write_new

PART = 1 << 20
"""Bytes that are read at a time."""
_LENGTH = struct.Struct("<Q")


class CopyReader:
    """Opens both files at once, so that the stream survives their deletion.

    Raises OSError if a file is missing.
    """

    def __init__(self, folder: Path) -> None:
        with ExitStack() as stack:
            config, tensors = (stack.enter_context(open(folder / name, "rb")) for name in (CONFIG, TENSORS))
            self._files, self._close = (config, tensors), stack.pop_all().close
        self._config_size, tensor_size = (os.fstat(file.fileno()).st_size for file in self._files)
        self.size = _LENGTH.size + self._config_size + tensor_size

    def parts(self) -> Iterator[bytes]:
        try:
            yield _LENGTH.pack(self._config_size)
            for file in self._files:
                while part := file.read(PART):
                    yield part
        finally:
            self._close()


class CopyWriter:
    """Writes a stream into an empty folder. size: of the tensor file, from the fleet's state."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._left = folder, size
        self._hash, self._head = hashlib.sha256(SALT), bytearray()
        self._tensors: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._tensors is not None:
            self._tensors.close()

    def write(self, data: bytes) -> None:
        """Write the next bytes. Raises Unfit if there are too many, OSError."""
        self._hash.update(data)
        if self._tensors is None:
            self._head += data
            if len(self._head) < _LENGTH.size:
                return
            (length,) = _LENGTH.unpack_from(self._head)
            end = _LENGTH.size + length
            if length > MOST:
                raise wrong_copy(f"its config would have {length} bytes")
            if len(self._head) < end:
                return
            write_new(self._folder / CONFIG, bytes(self._head[_LENGTH.size : end]))
            self._tensors = open(self._folder / TENSORS, "xb")  # noqa: SIM115 - closed at the end of the writer
            data = bytes(self._head[end:])
        self._left -= len(data)
        if self._left < 0:
            raise wrong_copy("there are more bytes than the adapter has")
        self._tensors.write(data)

    def finish(self, digest: str) -> None:
        """Finish the copy. Raises Unfit unless it matches the digest."""
        if self._tensors is None or self._left:
            raise wrong_copy("bytes are missing")
        if (actual := f"sha256:{self._hash.hexdigest()}") != digest:
            raise wrong_copy(f"its digest is {actual}")
        self._tensors.flush()
        os.fsync(self._tensors.fileno())
        sync_folder(self._folder)


def wrong_copy(why: str) -> Unfit:
    """Return the error for a copy that is not the adapter."""
    return Unfit(f"This is not a copy of the adapter: {why}.", code="wrong_copy")
