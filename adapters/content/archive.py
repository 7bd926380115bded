"""Unpack uploaded archives without trusting anything in them.

`unpack` runs in the checking process, which confines exploits of its libraries. Only adapter_config.json, safetensors
and the tokenizer's files are extracted, from the root or from one folder. Files that macOS adds and checkpoints below
the adapter are skipped.
"""

import gzip
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Self

from adapters.content.faults import Faults, quote_value
from adapters.content.forms import CHECKPOINT, CONFIG, TOKENIZER, is_shadow
from registry.bounds import Bounds

_BLOCK = 1 << 20
_FREE = 1 << 20
"""Bytes that may be unpacked at any ratio, because small text compresses well."""
MOST_EXTENDED = 16 << 10
"""Most bytes of one extended header of a tar: long names and attributes. tarfile searches it in quadratic time."""
MOST_EXTENDED_ALL = 256 << 10
"""Most bytes of all extended headers together."""
DRIVE = re.compile(r"[A-Za-z]:")
"""The beginning of an absolute path of Windows."""


_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _Refused(Exception):
    """The archive is refused; the message says why."""


class _Meter:
    """Counts unpacked bytes, and stops decompression bombs by size and ratio."""

    def __init__(self, bounds: Bounds, archive_bytes: int) -> None:
        self.limit = min(bounds.unpacked_bytes, _FREE + bounds.unpack_ratio * archive_bytes)
        self.bytes = 0

    def add(self, count: int) -> None:
        self.bytes += count
        if self.bytes > self.limit:
            raise _Refused(f"It unpacks to more than {self.limit} bytes, which is too much for its size.")


class _MeteredStream:
    """A decompressing file that counts all bytes, including skipped members and headers."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, meter: _Meter) -> None:
        self._file, self._meter = file, meter

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, _BLOCK) if size >= 0 else _BLOCK)
        self._meter.add(len(data))
        return data


def unpack(archive: Path, out: Path, bounds: Bounds, faults: Faults) -> None:
    """Extract the adapter's files from a tar, tar.gz or zip into the empty folder `out`."""
    try:
        with open(archive, "rb") as file:
            start = file.read(512)
            file.seek(0)
            meter = _Meter(bounds, os.fstat(file.fileno()).st_size)
            extractor = _Extractor(out, bounds)
            if start[:4] == b"PK\x03\x04":
                _unzip(file, meter, extractor)
            elif start[:2] == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=file) as plain:
                    _untar(_MeteredStream(plain, meter), extractor)
            elif start[257:262] == b"ustar":
                _untar(_MeteredStream(file, meter), extractor)
            else:
                raise _Refused("It is not a tar, tar.gz or zip file.")
            if not extractor.has_adapter and extractor.checkpoints:
                raise _Refused(
                    f"It holds adapters only in checkpoints, such as {quote_value(extractor.checkpoints[-1])}: pack "
                    "the folder of one of them."
                )
            if not extractor.has_adapter:
                raise _Refused("It holds no adapter_config.json and no safetensors at its root or in one folder.")
    except _Refused as refused:
        faults.add(f"The archive is refused. {refused}")
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, gzip.BadGzipFile, NotImplementedError) as error:
        faults.add(f"The archive is damaged: {quote_value(str(error))}.")
    except (ValueError, RuntimeError, UnicodeError, OverflowError, MemoryError) as error:
        faults.add(f"The archive is damaged or hostile: {type(error).__name__}.")


class _Extractor:
    """Checks members one by one and writes the adapter's files."""

    def __init__(self, out: Path, bounds: Bounds) -> None:
        self.out, self.bounds = out, bounds
        self._count = 0
        self._folder: str | None = None
        self.names: set[str] = set()
        self.checkpoints: list[str] = []
        """Folders of checkpoints that were skipped."""

    @property
    def has_adapter(self) -> bool:
        return any(name == CONFIG or name.endswith(".safetensors") for name in self.names)

    def destination(self, name: str, kind: str) -> Path | None:
        """Return the path to write a member to, or None to skip it.

        `kind`: 'file', 'folder' or another kind.
        """
        self._count += 1
        if self._count > self.bounds.unpacked_files:
            raise _Refused(f"It has more than {self.bounds.unpacked_files} members.")
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or DRIVE.match(name):
            raise _Refused(f"Member {quote_value(name)} points outside of it.")
        if kind not in ("file", "folder"):
            raise _Refused(f"Member {quote_value(name)} is a {kind}; only regular files are accepted.")
        if is_shadow(path):
            return None
        if kind == "folder" or not (path.name in (CONFIG, *TOKENIZER) or path.suffix == ".safetensors"):
            return None
        folder = str(path.parent)
        if self._is_beside(path, folder):
            self.checkpoints.append(folder)
            return None
        if path.name in TOKENIZER and (len(path.parts) > 2 or folder != (self._folder or folder)):
            return None
        if len(path.parts) > 2 or (self._folder is not None and folder != self._folder):
            raise _Refused(f"{quote_value(name)}: the adapter's files must be together, at the root or in one folder.")
        if path.name in self.names:
            raise _Refused(f"{quote_value(name)} is in it twice.")
        self._folder = folder
        self.names.add(path.name)
        return self.out / path.name

    def _is_beside(self, path: PurePosixPath, folder: str) -> bool:
        """Return whether a member belongs to a checkpoint below the adapter.

        Deletes the files of a checkpoint that came before the adapter.
        """
        *_, last = path.parent.parts or ("",)
        if CHECKPOINT.fullmatch(last):
            return len(path.parts) > 2 or self._folder not in (None, folder)
        if len(path.parts) == 1 and CHECKPOINT.fullmatch(self._folder or ""):
            for name in self.names:
                (self.out / name).unlink()
            self.checkpoints.append(str(self._folder))
            self._folder, self.names = None, set()
        return False

    def write(self, target: Path, read: Callable[[int], bytes], size: int) -> None:
        with open(target, "xb") as file:
            while size > 0:
                data = read(min(size, _BLOCK))
                if not data:
                    raise _Refused(f"{quote_value(target.name)} is truncated in it.")
                file.write(data)
                size -= len(data)


def _bounded_headers() -> type[tarfile.TarInfo]:
    """Return a class for the members of one tar, which refuses long extended headers before tarfile parses them."""
    total = 0

    class BoundedTarInfo(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
            nonlocal total
            member = super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]
            if member.type in _EXTENDED:
                total += member.size
                if member.size > MOST_EXTENDED or total > MOST_EXTENDED_ALL:
                    raise _Refused("Its extended headers are too long: pack it without extended attributes.")
            return member

    return BoundedTarInfo


def _untar(stream: _MeteredStream, extractor: _Extractor) -> None:
    with tarfile.open(  # type: ignore[call-overload]
        fileobj=stream, mode="r|", encoding="utf-8", errors="strict", tarinfo=_bounded_headers()
    ) as tar:
        for member in tar:
            kind = "file" if member.isreg() else "folder" if member.isdir() else "link or device"
            target = extractor.destination(member.name, kind)
            if target is not None:
                if member.sparse is not None:
                    raise _Refused(f"Member {quote_value(member.name)} is a sparse file.")
                source = tar.extractfile(member)
                if source is not None:
                    extractor.write(target, source.read, member.size)


def _unzip(file: IO[bytes], meter: _Meter, extractor: _Extractor) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            mode = member.external_attr >> 16
            kind = "folder" if member.is_dir() else "file"
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                kind = "link or device"
            if member.flag_bits & 1:
                raise _Refused(f"Member {quote_value(member.filename)} is encrypted.")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _Refused(f"Member {quote_value(member.filename)} is not compressed with deflate.")
            target = extractor.destination(member.filename, kind)
            if target is not None:
                with archive.open(member) as source:
                    extractor.write(target, _MeteredStream(source, meter).read, member.file_size)
