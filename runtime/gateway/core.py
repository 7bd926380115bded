"""The gateway: choose a target, admit the request, lease it, record the end.

Use cases other than inference are in `services`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from console.texts import Transcript, TranscriptStore
from models.tasks import Call
from registry.base.wording import quoted
from registry.errors import Forbidden, Misdirected, NotFound, RoundhouseError, Unavailable
from registry.names import DEFAULT_TEAM
from registry.recipes.definition import Task
from routing.decision import Decision
from routing.routers.content import Router
from runtime.gateway.backend import Backend, RelayedAnswer
from runtime.gateway.context import ExactTarget, RequestContext
from runtime.gateway.launch.on_demand import OnDemand
from runtime.gateway.names import ModelRef, Names
from runtime.gateway.record import AttemptSink, Sink
from runtime.gateway.request import Request
from runtime.gateway.routing.dispatcher import RouterDispatcher, route_input_of
from runtime.gateway.services import Services
from runtime.gateway.sinks.tenants import LedgerSink, LimitSink
from runtime.gateway.target import Lease, Target
from tenants.caller import Caller
from tenants.costs.prices import DeviceTime
from tenants.ledger.rows import BATCH

if TYPE_CHECKING:  # a server without traces does not load OpenTelemetry
    from runtime.gateway.tracing.spans import Spans

Phase = Literal["starting", "ready", "stopping"]


class Gateway:
    """One per server, on its event loop.

    Args:
        backends: tried in order; the first one that knows a name provides its target.
        ledger, limits: the first two sinks of every record, because responses wait for the ledger.
        sinks: the remaining sinks.
        transcripts: decides whose texts are stored.
        tracing: None if tracing is off.
    """

    def __init__(
        self,
        services: Services,
        names: Names,
        backends: Sequence[Backend],
        *,
        ledger: LedgerSink,
        limits: LimitSink,
        sinks: Sequence[Sink],
        transcripts: TranscriptStore,
        tracing: "Spans | None" = None,
    ) -> None:
        self.services = services
        self.phase: Phase = "starting"
        """`ready` once the adapters of recipes are registered. Requests are answered before that."""
        self._names, self._backends = names, {backend.name: backend for backend in backends}
        self._ledger, self._limits = ledger, limits
        self._sinks: Sequence[Sink] = (ledger, limits, *sinks, *([] if tracing is None else [tracing]))
        self._sinks_of_relayed: Sequence[Sink] = [] if tracing is None else [tracing]
        """Sinks for requests that another server answers and counts."""
        self._transcripts, self._tracing, self._device = transcripts, tracing, DeviceTime()
        self.dispatcher = RouterDispatcher(services.routers, self, limits)
        self.on_demand = OnDemand(names, services.adapters)

    # --- record -----------------------------------------------------------------------------------------------------
    def record(self, context: RequestContext, endpoint: str) -> Request:
        """Create a request, as a context manager around its work. At its end each sink gets its record."""
        trace = None if self._tracing is None else self._tracing.begin(context, endpoint)
        return Request(
            context, endpoint, self._sinks, device=self._device, trace=trace, sinks_of_relayed=self._sinks_of_relayed
        )

    def start_transcript(self, request: Request, body: bytes = b"") -> None:
        """Start storing the request's texts, if its team stores them."""
        if self._transcripts.is_enabled(request.context.caller.team):
            request.transcript = Transcript(body)

    def end_attempt(self, request: Request, error: RoundhouseError) -> None:
        """End a failed attempt that another one follows, and count what it used."""
        record = request.fail_attempt(error)
        for sink in self._sinks:
            if isinstance(sink, AttemptSink):
                sink.attempt(record)

    def cut_off(self) -> None:
        """Fail what still runs or waits, here or on another server, and start nothing more."""
        self.phase = "stopping"
        self.services.models.cut_off(_shutting_down())
        if self.services.fleet is not None:
            self.services.fleet.cut_off()

    @property
    def faults(self) -> Mapping[str, bool]:
        """What may stop working, by name, and whether it has."""
        return {
            "device_lost": bool(self.services.overview.lost_devices),
            "storage_full": self.services.reserve.is_short,
            "ledger_journalled": self._ledger.is_journalled,
            "ledger_unavailable": self._ledger.is_failing,
            "database_older": self.services.fleet is not None and self.services.fleet.is_database_older,
            "usage_uncounted": self._ledger.is_uncounted,
        }

    @property
    def degraded(self) -> list[str]:
        """Names of the parts that do not work at present."""
        return [name for name, is_so in self.faults.items() if is_so]

    async def flush(self) -> None:
        """Wait until the ledger has stored the end of every finished request."""
        await self._ledger.flush()

    # --- choose -----------------------------------------------------------------------------------------------------
    def resolve(self, model_ref: ModelRef, caller: Caller) -> Target:
        """Raises BadRequest (no name, wrong task), NotFound with what exists, Forbidden, Unavailable (starting)."""
        try:
            for backend in self._backends.values():
                if (target := backend.resolve(model_ref, caller)) is not None:
                    return target
        except NotFound:
            if self.phase == "starting" and self._names.may_be_registered(model_ref):
                raise Unavailable(
                    f"{quoted(str(model_ref.name))} is an adapter of a recipe that is being registered: try again.",
                    retry_after=1,
                ) from None
            raise
        raise NotFound(f"There is no model {model_ref.name!r}.", param="model")

    def check_name(self, model_ref: ModelRef, context: RequestContext) -> None:
        """Check the name before the rest of the request arrives. Raises as `resolve`, except for routers."""
        if context.hop is not None:  # the server that the client called has resolved it
            return
        if not self.services.routers.is_router(self._names.without_tag(model_ref)):
            self.resolve(model_ref, context.caller)

    async def choose(self, request: Request) -> Target:
        """Resolve the name, or let its router choose. Raises as `resolve`, Unavailable (no_route), Misdirected."""
        if request.context.hop is not None:
            request.attempt.target = self._exact(request, request.context.hop)
            return request.attempt.target
        router = await self.services.routers.ready(self._names.without_tag(request.model_ref))
        if router is None:
            target = await self._resolve_or_provide(request.model_ref, request.context.caller)
        else:
            target = await self.dispatcher.route(router, request)
        if request.context.source == BATCH:
            line = request.context.line
            target = target.for_line(None if line is None else line.own_name)
        request.attempt.target = target
        return target

    def _exact(self, request: Request, hop: ExactTarget) -> Target:
        """Find the weights that another server named by revision and digest. Raises Misdirected."""
        fleet = self.services.fleet
        if fleet is not None and fleet.is_draining:  # the other server has not noticed yet
            raise Misdirected("This server is drained and takes no new requests of the fleet.")
        adapter = f"{hop.adapter}@{hop.digest}" if hop.adapter else None
        reference = ModelRef(request.model_ref.task, hop.model, adapter)
        target: Target | None = None
        with suppress(NotFound):
            own = (backend for backend in self._backends.values() if backend.relay is None)
            target = next((match for one in own if (match := one.resolve(reference, request.context.caller))), None)
        digest = "" if target is None or target.version is None else target.version.digest
        is_stored = not digest or self.services.adapters.is_stored(digest)
        if target is None or not is_stored or (target.revision, digest) != (hop.revision, hop.digest):
            weights = f"revision {hop.revision}" + (f" with adapter {hop.digest}" if hop.digest else "")
            raise Misdirected(f"This server does not have {quoted(hop.model)} in {weights}.")
        if (
            hop.may_move
            and fleet is not None
            and not self.backend_of(target).state_of(target).is_resident
            and fleet.has_moved(target.model)
        ):  # it would be loaded again here
            raise Misdirected(f"{quoted(hop.model)} has moved to another node.")
        if request.context.source == BATCH:
            target = target.for_line()
        return replace(target, requested=hop.requested, routed=hop.route_choice)

    async def _resolve_or_provide(self, model_ref: ModelRef, caller: Caller) -> Target:
        """Like `resolve`, but first registers an adapter that is named by its source."""
        try:
            return self.resolve(model_ref, caller)
        except NotFound as missing:
            provided = await self.on_demand.provide(model_ref, caller)
            if provided is None:
                missing.message += self.on_demand.hint(model_ref, caller)
                raise
        return replace(self.resolve(provided, caller), requested=str(model_ref.adapter or model_ref.name))

    async def explain(
        self, request: Request, router: Router, endpoint: str, calls: Sequence[Call], model_ref: ModelRef
    ) -> Decision:
        """Return the decision for a request to `endpoint`, charged as a call of the router's embedding model."""
        spec = router.spec
        text = route_input_of(endpoint, calls, request.context, spec).features.text
        target, *embeds = self.dispatcher.embedding_call(router, text) or (Target(spec.id, spec.id, router.tag),)
        request.attempt.target = replace(target, requested=spec.id)
        request.understood(ModelRef(Task.EMBED, spec.id), lambda _: embeds)
        await self._limits.admit(request, lambda _: None)
        if (begun := self._ledger.begin(request, request.attempt.target)) is not None:
            await begun
        _, decision = await self.dispatcher.explain(router, endpoint, calls, model_ref, request)
        return decision

    def fallback(self, request: Request, name: str) -> Target | None:
        """Resolve a router's fall-back. None if the name is unknown, not allowed for the caller, or on no node now."""
        reference = replace(request.model_ref, name=name, adapter=None, written_by=DEFAULT_TEAM)
        try:
            target = self.resolve(reference, request.context.caller)
        except (NotFound, Forbidden, Unavailable):
            return None
        if request.context.source == BATCH:
            target = target.for_line()
        return replace(target, requested=request.chosen.requested, routed=request.chosen.routed)

    # --- admit ------------------------------------------------------------------------------------------------------
    async def admit(self, request: Request) -> None:
        """Reserve an attempt's usage within the limits of team and key. Raises LimitExceeded, Unavailable.

        If another server runs the request, the reservation is made there.
        """
        if request.target is not None and self.is_relayed(request.target):
            return
        await self._limits.admit(request, self.context_length)

    def levels(self, request: Request) -> Mapping[str, tuple[int, int, float]]:
        """Return limit, remaining amount and seconds until it is full again, by kind of limit."""
        levels = self._limits.levels(request)
        return {kind.value: (level.limit, level.remaining, level.seconds) for kind, level in levels.items()}

    # --- lease ------------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def lease(self, request: Request) -> AsyncIterator[Lease]:
        """Wait for a turn on the request's target, within the client's preferences.

        No engine gets the request before the ledger has stored its beginning. Raises QueueFull, Unavailable,
        DeadlineExceeded, the load's error, or LoadPending.
        """
        target = request.chosen
        self.refuse_if_stopping()
        begun = self._ledger.begin(request, target)
        async with self.backend_of(target).lease(request, target) as lease:
            request.leased(lease)
            if begun is not None:
                await begun
            yield lease

    def is_relayed(self, target: Target) -> bool:
        """Whether the target's answers are relayed whole from another server."""
        return self.backend_of(target).relay is not None

    def relay(self, request: Request) -> AbstractAsyncContextManager[RelayedAnswer]:
        """Forward the request to another server and return its answer. Raises NodeFailed, Unavailable."""
        relay = self.backend_of(request.chosen).relay
        assert relay is not None, "its target is relayed"
        self._limits.leave(request)
        self.refuse_if_stopping()
        return relay.send(request, request.chosen)

    def refuse_if_stopping(self) -> None:
        """Raises Unavailable (shutting_down)."""
        if self.phase == "stopping":
            raise _shutting_down()

    # --- the target's backend ---------------------------------------------------------------------------------------
    def context_length(self, target: Target) -> int | None:
        """The target's context length in tokens, if known."""
        return self.backend_of(target).context_length(target)

    def backend_of(self, target: Target) -> Backend:
        return self._backends[target.backend]


def _shutting_down() -> Unavailable:
    return Unavailable("This server is shutting down.", code="shutting_down", retry_after=10)
