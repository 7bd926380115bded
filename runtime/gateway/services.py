"""The use cases of a running server, for HTTP, the command line and the console."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from console.state import Console
from registry.bounds import Bounds
from registry.errors import QueueFull
from registry.storage.reserve import DiskReserve
from runtime.config.settings import Settings
from runtime.gateway.adapters import Adapters
from runtime.gateway.combine import Combiner
from runtime.gateway.launch.additions import Additions
from runtime.gateway.launch.editor import Editor
from runtime.gateway.launch.reloader import RecipeReloader
from runtime.gateway.models import Models
from runtime.gateway.providers.index import ProviderIndex
from runtime.gateway.providers.views import Providers
from runtime.gateway.routing.store import RouterStore
from runtime.gateway.views.overview import LiveSampler, Overview
from tenants.keys.keyring import Callers
from tenants.ledger.view import UsageReport
from tenants.watch import Administration

UPLOAD_RETRY = 5.0


class UploadShare:
    """The part of one upload. reserve: of the disk that it is written to."""

    def __init__(self, uploads: "Uploads", reserve: DiskReserve | None) -> None:
        self._uploads, self._reserve = uploads, reserve
        self.size = 0
        self._unwritten = 0

    def add(self, count: int) -> None:
        """Before so many more bytes are kept. Raises QueueFull, Unavailable (storage_full)."""
        if self._uploads.held + count > self._uploads.most:
            raise QueueFull(
                f"Uploads that are under way hold {self._uploads.held} bytes, and {self._uploads.most} is what all may "
                "hold together (see --bounds-factor): try again.",
                code="uploads_full",
                retry_after=UPLOAD_RETRY,
            )
        if self._reserve is not None:
            self._reserve.take(count)
            self._unwritten += count
        self._uploads.held += count
        self.size += count

    def written(self) -> None:
        """All that was added is on the disk, or never will be."""
        if self._reserve is not None:
            self._reserve.give_back(self._unwritten)
            self._unwritten = 0


class Uploads:
    """Bytes of all uploads on disk: those under way, and those that wait for a turn.

    A bound per upload is not enough: thousands may wait, and each has its file.
    """

    def __init__(self, most: int, bounds: Bounds, reserve: DiskReserve) -> None:
        """most: bytes of all; bounds: of each upload; reserve: no upload to its disk touches it."""
        self.most, self.held, self.bounds, self._reserve = most, 0, bounds, reserve

    @contextmanager
    def share(self, folder: Path) -> Iterator[UploadShare]:
        """folder: where it is written."""
        share = UploadShare(self, self._reserve if self._reserve.covers(folder) else None)
        try:
            yield share
        finally:
            share.written()
            self.held -= share.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One object per subject; made once by `runtime.gateway.opening`."""

    settings: Settings
    models: Models
    adapters: Adapters
    combiner: Combiner
    additions: Additions
    editor: Editor
    reloader: RecipeReloader
    overview: Overview
    callers: Callers
    """Who owns which key."""
    administration: Administration
    usage: UsageReport
    routers: RouterStore
    providers: ProviderIndex
    provider_models: Providers
    uploads: Uploads
    reserve: DiskReserve
    console: Console
    live: LiveSampler
