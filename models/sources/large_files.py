"""Fetch large files into huggingface_hub's cache, with resumption.

The library itself begins anew: it writes into a file that only one process knows. So each large file is written beside
its place first, by the library's own `http_get`, under a name that the next process finds.
"""

import hashlib
import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from filelock import FileLock

from models.sources.repository import Repository, RepositoryFile, blobs_of, part_of
from models.sources.resolve import Fetched
from registry.errors import Unavailable
from registry.files.sources import endpoint, hub_errors
from registry.recipes.fields import HubSource

AT_ONCE = 4
SHA256 = 64
"""Hex digits of the digests by which large files are known."""


class Counter:
    """Bytes that are here, of all files together."""

    def __init__(self, whole: int, on_progress: Fetched) -> None:
        self._come, self._whole, self._on_progress = 0, whole, on_progress
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._come += count
            self._on_progress(self._come, self._whole)


class CountedFile(io.FileIO):
    """A file that tells what is written to it."""

    def __init__(self, path: Path, counter: Counter) -> None:
        super().__init__(path, "r+b")
        self._counter = counter

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        written = 0
        while written < len(data):
            written += super().write(data[written:])
        self._counter.add(written)
        return written


def fetch_large_files(source: HubSource, repository: Repository, on_progress: Fetched) -> None:
    """Fetch missing large files. Blocks. Raises as `hub_errors`, and bad_download."""
    files = {name: file for name, file in repository.included.items() if len(file.digest) == SHA256}
    counter = Counter(sum(file.size for file in files.values()), on_progress)
    blobs = blobs_of(source)
    blobs.mkdir(parents=True, exist_ok=True)
    pool = ThreadPoolExecutor(AT_ONCE)
    under_way = [pool.submit(_bring, source, name, file, blobs, counter) for name, file in files.items()]
    try:
        for one in as_completed(under_way):
            one.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a fault is told at once: the rest may take hours


def _bring(source: HubSource, name: str, file: RepositoryFile, blobs: Path, counter: Counter) -> None:
    blob = blobs / file.digest
    part = part_of(blob)
    with FileLock(f"{part}.lock"):  # two servers may have one cache
        if blob.exists():
            counter.add(file.size)
            return
        _fetch(source, name, file, part, counter)
        with part.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            os.fsync(stream.fileno())  # its name says what it holds, also after a loss of power
        if digest != file.digest:
            part.unlink()
            raise Unavailable(
                f"{name} of '{source.hub}' came with other content than the hub says. It was removed: try again.",
                code="bad_download",
                retry_after=5,
            )
        os.replace(part, blob)


def _fetch(source: HubSource, name: str, file: RepositoryFile, part: Path, counter: Counter) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    part.touch()
    here = part.stat().st_size
    if here > file.size:
        os.truncate(part, 0)
        here = 0
    counter.add(here)
    if here == file.size:
        return
    url = hf_hub_url(source.hub, name, revision=source.revision, endpoint=endpoint())
    with hub_errors(source), CountedFile(part, counter) as stream:
        stream.seek(here)
        http_get(url, stream, resume_size=here, headers=build_hf_headers(), expected_size=file.size)
