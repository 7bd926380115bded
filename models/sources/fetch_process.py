"""The fetch process, `python -m models.sources.fetch_process PARENT`.

Downloads large files into huggingface_hub's cache so that they can be resumed. The library itself starts over, because
it writes to a file name that only one process knows. So each large file is first written next to its final place, by
the library's own `http_get`, under a name that the next process can find.
"""

import hashlib
import io
import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec
from filelock import FileLock
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
from pydantic import TypeAdapter

from models.process_control import die_with_parent
from models.sources.fetching import Answer, FetchDone, FetchFailed, FetchProgress
from models.sources.repository import (
    Repository,
    RepositoryFile,
    blobs_of,
    check_disk,
    check_files,
    files_of,
    keep_name,
    part_of,
)
from models.sources.resolve import Fetched, resolve
from registry.errors import RoundhouseError, Unavailable
from registry.files.sources import SurplusBytes, endpoint, hub_errors
from registry.recipes.fields import GgufSource, HubSource

AT_ONCE = 4
SHA256 = 64
"""Hex digits of the digests of large files."""


class Counter:
    """Counts the bytes received, for all files together."""

    def __init__(self, whole: int, on_progress: Fetched) -> None:
        self._come, self._whole, self._on_progress = 0, whole, on_progress
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._come += count
            self._on_progress(self._come, self._whole)


class CountedFile(io.FileIO):
    """A file that counts what is written to it. Raises SurplusBytes before it exceeds `most` bytes."""

    def __init__(self, path: Path, counter: Counter, most: int) -> None:
        super().__init__(path, "r+b")
        self._counter, self._most = counter, most

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        if self.tell() + len(data) > self._most:
            raise SurplusBytes
        written = 0
        while written < len(data):
            written += super().write(data[written:])
        self._counter.add(written)
        return written


def fetch_large_files(source: HubSource, repository: Repository, on_progress: Fetched) -> None:
    """Download missing large files. Blocks. Raises as `hub_errors`, and Unavailable (bad_download)."""
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
        pool.shutdown(wait=False, cancel_futures=True)  # report a failure at once, because the rest may take hours


def _bring(source: HubSource, name: str, file: RepositoryFile, blobs: Path, counter: Counter) -> None:
    blob = blobs / file.digest
    part = part_of(blob)
    with FileLock(f"{part}.lock"):  # two servers may share a cache
        if blob.exists():
            counter.add(file.size)
            return
        try:
            _fetch_file(source, name, file, part, counter)
        except SurplusBytes:
            part.unlink()
            raise _surplus(f"{name} of '{source.hub}'") from None
        with part.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            os.fsync(stream.fileno())  # its name guarantees its content, even after a power failure
        if digest != file.digest:
            part.unlink()
            raise Unavailable(
                f"{name} of '{source.hub}' came with other content than the hub says. It was removed: try again.",
                code="bad_download",
                retry_after=5,
            )
        os.replace(part, blob)


def _surplus(what: str) -> Unavailable:
    return Unavailable(
        f"{what} came with more bytes than the hub says. It was removed: try again.",
        code="bad_download",
        retry_after=5,
    )


def _fetch_file(source: HubSource, name: str, file: RepositoryFile, part: Path, counter: Counter) -> None:
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
    with hub_errors(source), CountedFile(part, counter, file.size) as stream:
        stream.seek(here)
        http_get(url, stream, resume_size=here, headers=build_hf_headers(), expected_size=file.size)


EVERY_SECONDS = 0.2


def main() -> None:
    """Download the source named on standard input. Ends together with the process that started it."""
    die_with_parent(int(sys.argv[1]))
    disable_progress_bars()
    answers = os.dup(1)
    os.dup2(2, 1)  # only answers may go to the pipe
    source: HubSource = TypeAdapter(GgufSource | HubSource).validate_json(sys.stdin.buffer.readline())
    os.nice(10)  # requests have priority
    _send(answers, _fetch(source, answers))


def _fetch(source: HubSource, answers: int) -> Answer:
    latest: FetchProgress | None = None

    def on_progress(come: int, whole: int | None) -> None:
        nonlocal latest
        latest = FetchProgress(come, whole)

    def tell() -> None:
        """Report at intervals, because nothing may arrive for a long time after the last of several pieces."""
        sent = None
        while True:
            if (now := latest) is not None and now != sent:
                _send(answers, now)
                sent = now
            time.sleep(EVERY_SECONDS)

    threading.Thread(target=tell, daemon=True).start()
    try:
        files = files_of(source)
        check_disk(source, files)
        pinned = source.model_copy(update={"revision": files.commit})
        fetch_large_files(pinned, files, on_progress)
        folder = _resolve_rest(pinned, files)  # a branch may have moved in the meantime
        check_files(source, folder, files)
        keep_name(source, files.commit)
    except RoundhouseError as error:
        return FetchFailed(error.status, error.code, error.message, error.retry_after)
    except OSError as error:
        why = f"'{source.hub}' could not be stored: {error.strerror or error}."
        return FetchFailed(503, "source_not_stored", f"{why} Make room, or point HF_HOME to another disk.")
    except Exception as error:
        traceback.print_exc()
        return FetchFailed(
            503, "download_failed", f"'{source.hub}' could not be fetched: {type(error).__name__}: {error}"
        )
    return FetchDone(str(folder))


def _resolve_rest(source: HubSource, files: Repository) -> Path:
    """Download the small files, and return the folder. Raises as `resolve`, and Unavailable (bad_download)."""
    try:
        return resolve(source, Path.cwd(), most=sum(file.size for file in files.included.values()))
    except SurplusBytes:
        raise _surplus(f"'{source.hub}'") from None


def _send(to: int, answer: Answer) -> None:
    os.write(to, msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
