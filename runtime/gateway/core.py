"""The gateway: one object, whole from the start, that everything outside this room uses.

A request: `record` it, `resolve` its name, `lease` the target, run a call (`runtime.gateway.backend`).
Everything else: `models`, `additions`, `editor`, `adapters`, `combiner`, `overview`.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Literal

from registry.errors import NotFound, RoundhouseError, Unavailable
from registry.files.abilities import abilities_of
from runtime.gateway.adapters import Adapters
from runtime.gateway.backend import LOCAL, Backend, Coming, Lease, Target
from runtime.gateway.combine import Combiner
from runtime.gateway.context import RequestContext
from runtime.gateway.launch.adding import Additions
from runtime.gateway.launch.editing import Editor
from runtime.gateway.launch.reloading import Reloading
from runtime.gateway.models import Models
from runtime.gateway.names import Names, Wanted
from runtime.gateway.providers.directory import Directory
from runtime.gateway.record import Recorder, Sink
from runtime.gateway.sinks.ledger import LedgerSink
from runtime.gateway.uploads import Uploads
from runtime.gateway.views.overview import Overview
from runtime.residency.manager import ResidencyManager
from runtime.server.settings import Settings
from tenants.caller import Caller
from tenants.keys.keyring import Callers
from tenants.ledger.view import UsageReport

Phase = Literal["starting", "ready", "stopping"]


class Gateway:
    """One per server, on its event loop. Made by `runtime.gateway.opening`.

    Args:
        backends: what can answer; the first one that handles a target does.
        sinks: each takes the record of every request, after the ledger.
        callers: who shows which key.
    """

    def __init__(
        self,
        settings: Settings,
        names: Names,
        residency: ResidencyManager,
        backends: Sequence[Backend],
        sinks: Sequence[Sink],
        models: Models,
        adapters: Adapters,
        combiner: Combiner,
        additions: Additions,
        editor: Editor,
        reloading: Reloading,
        overview: Overview,
        callers: Callers,
        ledger: LedgerSink,
        usage: UsageReport,
        providers: Directory,
    ) -> None:
        self.settings, self.models, self.adapters, self.overview = settings, models, adapters, overview
        self.combiner, self.additions, self.editor = combiner, additions, editor
        self.reloading = reloading
        self.uploads = Uploads(settings.max_uploads)
        self._names, self._residency, self._backends, self._sinks = names, residency, tuple(backends), (ledger, *sinks)
        self.callers, self.usage, self._ledger = callers, usage, ledger
        self.providers = providers
        self.phase: Phase = "starting"
        """ready: the adapters of recipes are there too. Requests are answered before that."""

    @contextmanager
    def record(self, context: RequestContext, endpoint: str) -> Iterator[Recorder]:
        """Around everything that is done for one request. At its end, whatever the end, each sink gets its record."""
        recorder = Recorder(context, endpoint, self._sinks)
        try:
            yield recorder
        except BaseException as error:
            recorder.failed(error)
            raise
        recorder.done()

    def resolve(self, wanted: Wanted, caller: Caller) -> Target:
        """Raises BadRequest for what is no name or the wrong task, NotFound with what exists, Forbidden."""
        if (elsewhere := self.providers.resolve(wanted, caller)) is not None:
            return elsewhere
        name, found = self._names.resolve(wanted, caller)
        entry = self._residency.get(found.recipe.id)
        abilities = abilities_of(entry.recipe, entry.path)
        return Target(name, entry.id, entry.revision, found.adapter_name, found.version, LOCAL, abilities)

    def coming(self, target: Target) -> Coming | None:
        """How far it is; None: it can answer at once."""
        return self._backend(target).coming(target)

    @asynccontextmanager
    async def lease(self, recorder: Recorder, target: Target) -> AsyncIterator[Lease]:
        """Wait for a turn on the target, as the client prefers.

        No engine sees the request before its beginning is in the ledger. Raises QueueFull, Unavailable,
        DeadlineExceeded, the load's error, or NotYet.
        """
        if self.phase == "stopping":
            raise Unavailable("This server is shutting down.", code="shutting_down", retry_after=10)
        begun = self._ledger.begin(recorder, target)
        async with self._backend(target).lease(recorder.context, target) as lease:
            recorder.leased(lease)
            if begun is not None:
                await begun
            yield lease

    def patience(self, target: Target) -> float | None:
        """Seconds that a request without a deadline may take; None: no such bound."""
        return self._backend(target).patience(target)

    def again(self, context: RequestContext, target: Target, error: Exception) -> float | None:
        """Seconds after which it may be sent to the same target once more; None: it may not."""
        return self._backend(target).again(context, target, error)

    def failed_attempt(self, recorder: Recorder, error: RoundhouseError) -> None:
        """An attempt has ended and another one follows: the ledger has a row of each."""
        self._ledger.take(recorder.attempt_failed(error))

    async def kept(self) -> None:
        """Returns once the ledger holds the ends of what has ended."""
        await self._ledger.written()

    def _backend(self, target: Target) -> Backend:
        for backend in self._backends:
            if backend.handles(target):
                return backend
        raise NotFound(f"Nothing here answers for '{target.asked}'.", param="model")
