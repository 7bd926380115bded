"""The gateway: one object, whole from the start, that everything outside this room uses.

A request: `record` it, `choose` what its name means, `lease` the target, run a call (`runtime.gateway.backend`).
Everything else: `models`, `additions`, `editor`, `adapters`, `combiner`, `overview`, `routers`.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Literal

from console.state import Console
from registry.errors import NotFound, RoundhouseError, Unavailable
from registry.files.abilities import abilities_of
from routing.providers.retry import RetryBudget
from runtime.config.settings import Settings
from runtime.gateway.adapters import Adapters
from runtime.gateway.backend import LOCAL, Backend, Call, Lease, Target
from runtime.gateway.charging.pricing import price_list
from runtime.gateway.combine import Combiner
from runtime.gateway.context import RequestContext
from runtime.gateway.launch.additions import Additions
from runtime.gateway.launch.editor import Editor
from runtime.gateway.launch.reloader import RecipeReloader
from runtime.gateway.local.backend import context_length
from runtime.gateway.models import Models
from runtime.gateway.names import ModelRef, Names
from runtime.gateway.providers.index import ProviderIndex
from runtime.gateway.providers.views import Providers
from runtime.gateway.record import AttemptSink, RequestRecord, Sink
from runtime.gateway.recorder import Recorder
from runtime.gateway.routing.dispatcher import RouterDispatcher
from runtime.gateway.routing.store import RouterStore
from runtime.gateway.routing.targets import Targets
from runtime.gateway.sinks.console import ConsoleSink
from runtime.gateway.sinks.ledger import LedgerSink
from runtime.gateway.sinks.limits import LimitSink
from runtime.gateway.tracing.setup import Tracing
from runtime.gateway.uploads import Uploads
from runtime.gateway.views.live import LiveSampler
from runtime.gateway.views.overview import Overview
from runtime.residency.manager import ResidencyManager
from tenants.administration import Administration
from tenants.caller import Caller
from tenants.costs.device import DeviceTime
from tenants.keys.keyring import Callers
from tenants.ledger.view import UsageReport

NOT_LOADING = ("absent", "asleep", "failed")
"""States of a model in which no load is under way: who wants it first then causes one."""
Phase = Literal["starting", "ready", "stopping"]
Calls = Callable[[int | None], Sequence[Call]]


class Gateway:
    """One per server, on its event loop. Made by `runtime.gateway.opening`.

    Args:
        backends: what can answer; the first one that handles a target does.
        sinks: each takes the record of every request, after the ledger.
        callers: who shows which key.
    """

    def __init__(
        self,
        *,
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
        reloading: RecipeReloader,
        overview: Overview,
        callers: Callers,
        ledger: LedgerSink,
        usage: UsageReport,
        limits: LimitSink,
        administration: Administration,
        routers: RouterStore,
        providers: ProviderIndex,
        provider_models: Providers,
        console: Console | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.settings, self.models, self.adapters, self.overview = settings, models, adapters, overview
        self.combiner, self.additions, self.editor = combiner, additions, editor
        self.reloading = reloading
        self.uploads = Uploads(settings.max_uploads, settings.bounds)
        self._names, self._residency, self._backends = names, residency, tuple(backends)
        self.console = console or Console(settings.port)
        self.look = LiveSampler(names, overview, self.console, usage.currency)
        last: Sequence[Sink] = [ConsoleSink(self.console), *([] if tracing is None else [tracing])]
        self._sinks: Sequence[Sink] = (ledger, limits, *sinks, *last)
        self._tracing = tracing
        self.callers, self.usage, self._ledger, self._limits = callers, usage, ledger, limits
        self._device = DeviceTime()
        self.routers, self.providers = routers, providers
        self.provider_models = provider_models
        self.hedges = defaultdict[str, RetryBudget](RetryBudget)
        """Second attempts beside late ones, by who is late: a fall-back that has no other traffic may be asked, too."""
        self.administration = administration
        targets = Targets(self.resolve, residency, partial(limits.affords, context_of=self._context_length))
        self.dispatcher = RouterDispatcher(
            routers, targets, self.resolve, lambda c, target: self.backend(target).lease(c, target)
        )
        self.phase: Phase = "starting"
        """ready: the adapters of recipes are there too. Requests are answered before that."""

    @contextmanager
    def record(self, context: RequestContext, endpoint: str) -> Iterator[Recorder]:
        """Around everything that is done for one request. At its end, whatever the end, each sink gets its record."""
        if self._tracing is not None:
            context = self._tracing.begin(context, endpoint)
        recorder = Recorder(context, endpoint, self._sinks, device=self._device)
        try:
            yield recorder
        except BaseException as error:
            recorder.failed(error)
            raise
        recorder.done()

    def resolve(self, model_ref: ModelRef, caller: Caller) -> Target:
        """Raises BadRequest for what is no name or the wrong task, NotFound with what exists, Forbidden."""
        if (target := self.providers.resolve(model_ref, caller)) is not None:
            return target
        name, resolved = self._names.resolve(model_ref, caller)
        entry = self._residency.get(resolved.recipe.id)
        abilities, price = abilities_of(entry.recipe, entry.path), price_list(entry.recipe.price)
        return Target(name, entry.id, entry.revision, resolved.adapter_name, resolved.version, LOCAL, abilities, price)

    def check_name(self, model_ref: ModelRef, caller: Caller) -> None:
        """Before the rest of a request has come: raises as `resolve` for what is no router's name either."""
        if not self.routers.is_router(self._names.without_tag(model_ref)):
            self.resolve(model_ref, caller)

    def admit(self, recorder: Recorder, target: Target, calls: Callable[[int | None], Sequence[Call]]) -> None:
        """Reserve what the team's and the key's limits must hold for it. Raises LimitExceeded, what `calls` raises."""
        self._limits.admit(recorder, target, calls, self._context_length(target))

    def _context_length(self, target: Target) -> int | None:
        if target.backend == LOCAL:
            return context_length(self._residency.get(target.model))
        entry = self.providers.entry_of(target)
        return None if entry is None else entry.model.context_length

    def levels(self, recorder: Recorder) -> Mapping[str, tuple[int, int, float]]:
        """By kind of limit: limit, what remains, seconds until all of it is there again."""
        levels = self._limits.levels(recorder)
        return {kind.value: (left.limit, left.remaining, left.seconds) for kind, left in levels.items()}

    async def choose(self, parsed: ModelRef, endpoint: str, calls: Calls, context: RequestContext) -> Target:
        """`resolve`; of a router's name, whom it chooses. calls: asked for only if it is one.

        Raises also Unavailable (no_route).
        """
        router = await self.routers.ready(self._names.without_tag(parsed))
        if router is None:
            return self.resolve(parsed, context.caller)
        return await self.dispatcher.route(router, endpoint, calls(None), parsed, context)

    @asynccontextmanager
    async def lease(self, recorder: Recorder, target: Target) -> AsyncIterator[Lease]:
        """Wait for a turn on the target, as the client prefers.

        No engine sees the request before its beginning is in the ledger. Raises QueueFull, Unavailable,
        DeadlineExceeded, the load's error, or NotYet.
        """
        if self.phase == "stopping":
            raise Unavailable("This server is shutting down.", code="shutting_down", retry_after=10)
        begun, backend = self._ledger.begin(recorder, target), self.backend(target)
        is_cold = self._is_cold(target)
        async with backend.lease(recorder.context, target) as lease:
            recorder.leased(lease, is_cold=is_cold)
            if target.backend == LOCAL:  # while it waited the model may have become another revision of itself
                recorder.set_revision(self._residency.get(target.model).revision)
            if begun is not None:
                await begun
            yield lease

    def _is_cold(self, target: Target) -> bool:
        """It is away, and nobody has wanted it before this request: others come while it waits for room."""
        progress = self.backend(target).load_progress(target) if target.backend == LOCAL else None
        return (
            progress is not None
            and progress.phase in NOT_LOADING
            and self._residency.get(target.model).requested_since is None
        )

    def end_attempt(self, recorder: Recorder, error: RoundhouseError) -> None:
        """An attempt has ended and another one follows: what it used is counted as well."""
        self._record_attempt(recorder.attempt_failed(error))

    def superseded(self, recorder: Recorder) -> None:
        """An attempt was given up, as the one beside it was first: what it used is counted as well."""
        self._record_attempt(recorder.superseded())

    def _record_attempt(self, record: RequestRecord) -> None:
        for sink in self._sinks:
            if isinstance(sink, AttemptSink):
                sink.attempt(record)

    async def kept(self) -> None:
        """Returns once the ledger holds the ends of what has ended."""
        await self._ledger.flush()

    def backend(self, target: Target) -> Backend:
        """What answers for it. Raises NotFound."""
        for backend in self._backends:
            if backend.handles(target):
                return backend
        raise NotFound(f"Nothing here answers for '{target.requested}'.", param="model")
