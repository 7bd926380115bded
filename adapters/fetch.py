"""Fetch an adapter's source to this machine, and clean up afterwards."""

import asyncio
import contextlib
import errno
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from adapters import remote
from adapters.jobs import FULL
from adapters.remote import download_repository
from adapters.types import AdapterSource, ComposedAdapter, UploadedArchive, UrlSource
from registry.base.threads import Threads
from registry.bounds import Bounds
from registry.errors import BadRequest, NotFound, Unavailable
from registry.files.sources import locate
from registry.recipes.fields import HubSource, PackageSource
from registry.storage.reserve import DiskReserve

S = TypeVar("S")
T = TypeVar("T")
UNUSABLE = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EIO, errno.ESTALE)


@dataclass(frozen=True, slots=True)
class FetchedAdapter:
    """A source on this machine: a folder, or an archive and the folder to unpack it into."""

    path: Path
    unpack_to: Path | None
    words: str
    """Description of the source, for people."""


class Fetcher:
    """Fetches sources into `incoming`, a folder that it owns and `start` empties."""

    def __init__(self, incoming: Path, bounds: Bounds, reserve: DiskReserve) -> None:
        self._incoming, self._bounds, self._reserve = incoming, bounds, reserve
        self._threads = Threads("hub of adapters", each=3)

    def start(self) -> None:
        """Remove leftovers of a killed process. Blocks."""
        shutil.rmtree(self._incoming, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def fetched(self, source: AdapterSource, team: str) -> AsyncIterator[FetchedAdapter]:
        """Fetch a source to this machine at the team's turn, and delete the fetched files after the block."""
        if isinstance(source, UploadedArchive | HubSource | UrlSource):
            folder = self._new_folder()
            try:
                if isinstance(source, UploadedArchive):
                    yield FetchedAdapter(source.path.absolute(), folder, "upload")
                elif isinstance(source, HubSource):
                    commit = await self._download(source.hub, download_repository, source, folder, team)
                    yield FetchedAdapter(folder, None, f"{source.hub}@{commit}")
                else:
                    await self._download(source.words, remote.download, source, folder, team)
                    yield await asyncio.to_thread(_downloaded, source, folder)
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, True)
        elif isinstance(source, ComposedAdapter):
            yield FetchedAdapter(source.path, None, source.words)
        elif isinstance(source, PackageSource):
            folder = await asyncio.to_thread(locate, source)
            yield FetchedAdapter(folder, None, f"{source.package}:{source.inside}")
        else:
            path = Path(source.path)
            if not path.is_absolute():
                raise BadRequest(f"'{source.path}' is not an absolute path.", param="source.path")
            real = await asyncio.to_thread(_folder, path)
            yield FetchedAdapter(real, None, str(path))

    async def _download(
        self, words: str, work: Callable[[S, Path, Bounds, DiskReserve], T], source: S, folder: Path, team: str
    ) -> T:
        try:
            with disk_errors():
                async with asyncio.timeout(self._bounds.adapter_download_seconds):
                    return await self._threads.run_for(team, work, source, folder, self._bounds, self._reserve)
        except TimeoutError:  # the thread fails by itself, since its folder is deleted
            raise Unavailable(
                f"'{words}' was not downloaded within {self._bounds.adapter_download_seconds:.0f} s.",
                code="hub_unavailable",
            ) from None

    def _new_folder(self) -> Path:
        with disk_errors():  # not in a thread, so that a cancelled caller cannot leave the folder behind
            self._incoming.mkdir(exist_ok=True)  # without parents, so that a missing data directory raises
            return Path(tempfile.mkdtemp(dir=self._incoming))


def _downloaded(source: UrlSource, folder: Path) -> FetchedAdapter:
    if not remote.is_archive(source.url):
        return FetchedAdapter(folder, None, source.words)
    (archive,) = folder.iterdir()
    (folder / "unpacked").mkdir()
    return FetchedAdapter(archive, folder / "unpacked", source.words)


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise NotFound(f"There is no folder {path} on the server.", code="source_not_found", param="source.path")
    return path.resolve()


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Raise Unavailable (disk_full) for a full disk or an unusable data directory."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            problem = "The disk that holds the adapters is full, or cannot be written."
        elif error.errno in UNUSABLE:
            problem = f"The data directory cannot be used: {error.strerror} ({error.filename})."
        else:
            raise
        raise Unavailable(f"{problem} Nothing was registered.", code="disk_full") from error
