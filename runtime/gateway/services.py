"""The use cases of a running server, for HTTP, the command line and the console."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from console.state import Console
from registry.bounds import Bounds
from registry.errors import QueueFull
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
    """The part of one upload."""

    def __init__(self, uploads: "Uploads") -> None:
        self._uploads = uploads
        self.size = 0

    def add(self, count: int) -> None:
        """Before so many more bytes are kept. Raises QueueFull."""
        if self._uploads.held + count > self._uploads.most:
            raise QueueFull(
                f"Uploads that are under way hold {self._uploads.held} bytes, and {self._uploads.most} is what all may "
                "hold together (see --bounds-factor): try again.",
                code="uploads_full",
                retry_after=UPLOAD_RETRY,
            )
        self._uploads.held += count
        self.size += count


class Uploads:
    """Bytes of all uploads on disk: those under way, and those that wait for a turn.

    A bound per upload is not enough: thousands may wait, and each has its file.
    """

    def __init__(self, most: int, bounds: Bounds) -> None:
        """most: bytes of all; bounds: of each upload."""
        self.most, self.held, self.bounds = most, 0, bounds

    @contextmanager
    def share(self) -> Iterator[UploadShare]:
        share = UploadShare(self)
        try:
            yield share
        finally:
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
    console: Console
    live: LiveSampler
