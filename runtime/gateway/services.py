"""The use cases of a running server, for HTTP, the command line and the console."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import Histogram

from batches.service import BatchService
from console.state import Console
from registry.base.turns import ListBuilder
from registry.storage.reserve import DiskReserve
from runtime.config.settings import Settings
from runtime.gateway.adapters import Adapters
from runtime.gateway.combine import Combiner
from runtime.gateway.launch.additions import Additions
from runtime.gateway.launch.editor import Editor
from runtime.gateway.launch.merged import MergedModels
from runtime.gateway.launch.reloader import RecipeReloader
from runtime.gateway.local.rooms import LineRooms
from runtime.gateway.models import Models
from runtime.gateway.providers.index import ProviderIndex
from runtime.gateway.providers.store import ProviderStore
from runtime.gateway.providers.views import Providers
from runtime.gateway.routing.store import RouterStore
from runtime.gateway.uploads import Uploads
from runtime.gateway.views.live import LiveSampler
from runtime.gateway.views.overview import Overview
from tenants.keys.keyring import Keyring
from tenants.ledger.view import UsageReport
from tenants.responses.store import ResponseStore
from tenants.watch import Administration

if TYPE_CHECKING:  # servers without a fleet do not import it
    from runtime.gateway.peers.service import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One object per subject, created once by `runtime.gateway.opening`."""

    settings: Settings
    models: Models
    adapters: Adapters
    combiner: Combiner
    merged: MergedModels
    additions: Additions
    editor: Editor
    reloader: RecipeReloader
    overview: Overview
    keyring: Callable[[], Keyring]
    """Returns the keys of callers. Raises Unavailable if they cannot be read."""
    administration: Administration
    usage: UsageReport
    responses: ResponseStore
    batches: BatchService
    line_rooms: LineRooms
    """The room that models have for batch lines."""
    batch_forecasts: Histogram
    """Forecast over actual duration of batches, by when the forecast was made."""
    routers: RouterStore
    providers: ProviderIndex
    provider_models: Providers
    provider_store: ProviderStore
    uploads: Uploads
    reserve: DiskReserve
    console: Console
    live: LiveSampler
    lists: ListBuilder = field(default_factory=ListBuilder)
    """Builds the lists of models and adapters, which may be long."""
    fleet: "Fleet | None" = None
    """None if this server belongs to no fleet."""
