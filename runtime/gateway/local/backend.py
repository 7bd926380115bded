"""The backend for models of this machine: a turn in the queue, then calls to the model's slot."""

import asyncio
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Self

import msgspec

from adapters.types import StoredAdapter
from models.messages import AdapterRef, Chunk, EmbedRequest, Event, HttpCall, Message, Progress, ResponseStart, Usage
from models.tasks import Call
from models.tasks.chat import ChatPayload
from models.work import ANSWER_TOKEN, work_of
from registry.errors import DeadlineExceeded, RoundhouseError, Unavailable
from registry.files.context import Ability, abilities_of, context_of
from registry.records import Version
from routing.replicas import Reason, choose, keys_of
from runtime.gateway.backend import LoadProgress, TargetState
from runtime.gateway.local.defaults import defaults
from runtime.gateway.local.work import WorkEstimator
from runtime.gateway.metrics import Metrics
from runtime.gateway.names import ModelRef, Names
from runtime.gateway.request import Request
from runtime.gateway.target import LoadPending, Target, total
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.states import ModelState
from runtime.scheduling.admission import REVOKED, SlotLease, unreachable
from runtime.scheduling.fair import QueueRequest
from runtime.slots import frames
from runtime.slots.link import FrameCall
from tenants.caller import Caller, ServiceClass
from tenants.costs.prices import PriceList, batch_price_list, price_list
from tenants.ledger.rows import BATCH

NAME = "local"
SALTED = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"))
"""Paths whose calls fill an engine's prefix cache."""
TIERS = {ServiceClass.CRITICAL: "priority", ServiceClass.INTERACTIVE: "default", ServiceClass.BATCH: "flex"}
"""OpenAI's names for the classes."""
CONTINUED = {"add_generation_prompt": False, "continue_final_message": True}
"""vLLM's fields for continuing the last message."""
NOT_LOADING = frozenset((ModelState.ABSENT, ModelState.ASLEEP, ModelState.FAILED))
"""States in which no load is under way."""
PROBE_FAILED = "The adapter's probe failed. Only the team that shares it is told more."


def reference(stored: StoredAdapter) -> AdapterRef:
    """Convert a stored adapter to the form that engines take."""
    return AdapterRef(digest=stored.digest, path=str(stored.path), rank=stored.rank, bytes=stored.bytes)


def context_length(entry: ModelEntry) -> int | None:
    """The context length that the engine reports or, before it is loaded, that of the recipe's files."""
    return (entry.loaded.context_length if entry.loaded else 0) or context_of(entry.recipe, entry.path)


@dataclass(frozen=True, slots=True)
class _Facts:
    """A model's facts for targets, computed once per recipe and files."""

    key: tuple[object, ...]
    abilities: frozenset[Ability]
    price: PriceList | None
    batch_price: PriceList | None

    @classmethod
    def of(cls, entry: ModelEntry, key: tuple[object, ...]) -> Self:
        price = entry.recipe.price
        return cls(key, abilities_of(entry.recipe, entry.path), price_list(price), batch_price_list(price))


class LocalBackend:
    """`runtime.gateway.backend.Backend`. Failures are final, since its queue does the waiting.

    Args:
        stored: finds the files of an adapter's version.
    """

    name = NAME
    retry = relay = None

    def __init__(
        self,
        names: Names,
        residency: ResidencyManager,
        stored: Callable[[Version], StoredAdapter],
        metrics: Metrics,
    ) -> None:
        self._names, self._residency, self._stored, self._metrics = names, residency, stored, metrics
        self._estimators = dict[str, WorkEstimator]()
        self._facts = dict[str, _Facts]()

    # --- names and states -------------------------------------------------------------------------------------------
    def resolve(self, model_ref: ModelRef, caller: Caller) -> Target:
        """Resolve a name. As the last backend, raises NotFound for unknown ones. Raises BadRequest, Forbidden."""
        name, resolved = self._names.resolve(model_ref, caller)
        entry = self._residency.get(resolved.recipe.id)
        key = (entry.recipe, entry.path, entry.revision)
        facts = self._facts.get(entry.id)
        if facts is None or facts.key[0] is not entry.recipe or facts.key[1:] != key[1:]:
            facts = self._facts[entry.id] = _Facts.of(entry, key)
        return Target(
            name,
            entry.id,
            entry.revision,
            resolved.adapter_name,
            resolved.version,
            NAME,
            abilities=facts.abilities,
            price=facts.price,
            batch_price=facts.batch_price,
            is_strict=entry.recipe.strict,
        )

    def load_progress(self, target: Target) -> LoadProgress | None:
        entry = self._residency.get(target.model).lead
        if entry.is_ready:
            return None
        progress = entry.progress
        return LoadProgress(progress.phase, progress.fraction) if progress else LoadProgress(entry.state.value, 0.0)

    def context_length(self, target: Target) -> int | None:
        return context_length(self._residency.get(target.model).lead)

    def state_of(self, target: Target) -> TargetState:
        entry = self._residency.entries.get(target.model)
        if entry is None:
            return TargetState(is_local=True, is_resident=True, waiting=0)
        return TargetState(is_local=True, is_resident=entry.lead.is_ready, waiting=entry.queue.policy.waiting_for_model)

    # --- a turn -----------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def lease(self, request: Request, target: Target) -> "AsyncIterator[LocalLease]":
        context, entry = request.context, self._residency.get(target.model)
        loads, is_cold = not entry.lead.is_ready, False
        if loads:
            is_cold = entry.progress is None and entry.state in NOT_LOADING and entry.requested_since is None
            self._metrics.cold.labels(entry.id).inc()
            if context.preference.respond_async:
                self._residency.request_load(entry)
                raise LoadPending(entry.id, max(1.0, self._residency.expected_wait(entry)))
        adapter = None if target.version is None else reference(self._stored(target.version))
        if (estimator := self._estimators.get(entry.id)) is None:
            estimator = self._estimators[entry.id] = WorkEstimator(entry.recipe.task)
        size = context.hints.size
        queue_request = QueueRequest(
            team=context.caller.team,
            key=context.caller.key or "",
            weight=context.caller.weight,
            service_class=context.service_class,
            work=estimator.work(size, target.label or "", context.hints.most_tokens),
            due=context.begin_by,
            pool=entry.recipe.pool_of(context.service_class.label, estimator.prompt(size)),
            is_line=context.source == BATCH,
        )
        reason: Reason = "only"
        if not loads and len(entry.replicas) > 1:
            entry, reason = self._choose(request, entry, adapter, estimator.prompt(size))
        async with await self._turn(request, target, entry, adapter, queue_request) as turn:
            calls = AsyncExitStack()
            if turn.ticket.replica != entry.number:  # another replica than the chosen one was free first
                entry = next((replica for replica in entry.replicas if replica.number == turn.ticket.replica), entry)
                reason = "free"
            lease = LocalLease(request, target, entry, adapter, turn, calls, reason)
            lease.load_seconds, lease.is_cold = turn.ticket.queued_seconds if loads else 0.0, is_cold
            try:
                async with calls:
                    yield lease
                estimator.learn(size, target.label or "", lease.usage)  # not from requests that were cut off
            finally:
                turn.set_work(work_of(lease.usage))

    def _choose(
        self, request: Request, entry: ModelEntry, adapter: AdapterRef | None, prompt_work: float
    ) -> tuple[ModelEntry, Reason]:
        """Choose a ready replica for a request, with the reason."""
        ready = [replica for replica in entry.replicas if replica.is_ready]
        if len(ready) == 1:
            return ready[0], "only"
        digest = None if adapter is None else adapter.digest
        first = next(iter(request.calls), None)
        body = first.body if isinstance(first, ChatPayload) else None
        keys = keys_of(body, request.context.caller.salt or "", digest)
        states = [one.queue.state(digest) for one in ready]
        position, reason = choose(states, keys, entry.queue.seconds_of(prompt_work))
        return ready[position], reason

    async def _turn(
        self,
        request: Request,
        target: Target,
        entry: ModelEntry,
        adapter: AdapterRef | None,
        queue_request: QueueRequest,
    ) -> SlotLease:
        """Wait for model, turn and adapter, within the client's preferences and deadline."""
        context = request.context
        wait, left = context.preference.wait, context.seconds_left()
        if left is not None:
            wait = min(left, entry.recipe.queue.max_wait if wait is None else wait)
        version = target.version
        try:
            if left == 0.0:
                raise Unavailable("Its deadline passed on its way.")
            expected = 0.0 if left is None or entry.is_ready else self._residency.expected_wait(entry)
            if left is not None and expected > left:
                self._residency.request_load(entry)  # otherwise clients with short deadlines would never get it loaded
                raise unreachable(entry.model, expected, left)
            return await entry.queue.acquire(adapter, wait, version.probe if version else None, claim=queue_request)
        except Unavailable as error:
            if error.code == "adapter_probe_failed" and version and version.key.team != queue_request.team:
                raise Unavailable(PROBE_FAILED, code=error.code, retry_after=error.retry_after) from None
            if context.seconds_left() == 0.0:
                raise too_late(entry.model) from None
            if error.code == "queue_timeout" and not entry.is_ready:
                error.retry_after = max(error.retry_after or 1.0, self._residency.expected_wait(entry))
            raise


class LocalLease:
    """`runtime.gateway.target.Lease`."""

    uses_device = True

    def __init__(
        self,
        request: Request,
        target: Target,
        entry: ModelEntry,
        adapter: AdapterRef | None,
        turn: SlotLease,
        calls: AsyncExitStack,
        reason: Reason,
    ) -> None:
        self.request, self.entry, self.turn, self._reason = request, entry, turn, reason
        self._target, self._adapter, self._stack = target, adapter, calls
        self._calls: list[FrameCall] = []
        self._tokens = 0
        self.load_seconds, self.is_cold = 0.0, False

    @property
    def queued_seconds(self) -> float:
        return self.turn.ticket.queued_seconds

    @property
    def swap_seconds(self) -> float:
        return self.turn.ticket.swap_seconds

    @property
    def revision(self) -> str:
        return self.entry.loaded_revision or self.entry.revision

    @property
    def replica(self) -> int:
        return self.entry.number if len(self.entry.replicas) > 1 else 0

    @property
    def replica_reason(self) -> Reason | None:
        return self._reason if self.replica else None

    @property
    def pool(self) -> str:
        return self.turn.ticket.claim.pool

    @property
    def flag(self) -> None:
        """Always None: the engine counts usage itself."""
        return None

    @property
    def first_goal(self) -> float | None:
        pool = self.entry.recipe.pools.get(self.pool)
        return None if pool is None else pool.ttft

    @property
    def context_length(self) -> int | None:
        return context_length(self.entry)

    @property
    def usage(self) -> Usage:
        return total([call.usage for call in self._calls if call.usage is not None])

    def run(self, call: Call) -> "LocalEvents":
        return LocalEvents(self, call)

    async def start(self, call: Call) -> FrameCall:
        """Send a call to the slot. The end of the lease cancels it."""
        engine_request, id_ = self._engine_request(call), self.request.context.id
        frame_call = self.turn.link.call(lambda uid: frames.Call.of(uid, engine_request, id_))
        self._calls.append(frame_call)
        await self._stack.enter_async_context(frame_call)
        aborted = self.turn.ticket.aborted  # a drain deadline ends the call with an error
        if aborted is not None:
            aborted.add_done_callback(lambda done: None if done.cancelled() else _abort(frame_call, done.result()))
        return frame_call

    def count(self, data: bytes) -> None:
        """Charge the tokens of a stream as they arrive, since the estimate may be far too low."""
        self._tokens += data.count(b"\n\n")
        self.turn.progress(self._tokens * ANSWER_TOKEN)

    def _engine_request(self, call: Call) -> Message:
        context, trace = self.request.context, self.request.trace
        if isinstance(call, EmbedRequest) and call.truncate is None and context.preference.strict:
            return msgspec.structs.replace(call, truncate=False)
        if not isinstance(call, ChatPayload):
            return call
        served = self._adapter.digest if self._adapter else self.entry.model
        tier = TIERS[context.service_class] if context.hints.echoes_class else ""
        repeated = {"service_tier": tier} if tier and call.path == "/v1/responses" else {}
        begun = CONTINUED if call.continues else {}
        body = {**call.body, **defaults(self.entry.recipe, call.path, call.body)}
        return HttpCall(
            path=call.path,
            body=msgspec.json.encode({**body, **self._salt(call), "model": served, **repeated, **begun}),
            served=served,
            display_name=self._target.requested,
            adapter=self._adapter,
            request_id=f"{context.id}-{secrets.token_hex(4)}",  # unique even if clients reuse ids
            team=context.caller.team,
            priority=int(context.service_class),
            tier=tier,
            strict=context.preference.strict,
            trace=dict(trace.headers) if trace else {},
        )

    def _salt(self, call: ChatPayload) -> dict[str, str]:
        """Separate the prefix caches of teams, since timing would reveal other teams' prompts."""
        team, own = self.request.context.caller.salt, call.body.get("cache_salt")
        if not team or call.path not in SALTED or not isinstance(own, str | None) or own == "":
            return {}
        return {"cache_salt": hmac.digest(team.encode(), (own or "").encode(), "sha256").hex()}


class LocalEvents:
    """The events of one call. Not a generator, because every token passes through it."""

    def __init__(self, lease: LocalLease, call: Call) -> None:
        self._lease, self._call = lease, call
        self._frame_call: FrameCall | None = None
        self._until = lease.request.context.begin_by

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        frame_call = self._frame_call
        if frame_call is None:
            frame_call = self._frame_call = await self._lease.start(self._call)
        while True:
            event = await (frame_call.next() if self._until is None else self._next_in_time(frame_call, self._until))
            if event is None:
                raise StopAsyncIteration
            if isinstance(event, Progress):
                continue
            self._until = self._lease.request.context.deadline
            if isinstance(event, Chunk):
                self._lease.count(event.data)
            elif isinstance(event, ResponseStart) and isinstance(self._call, ChatPayload) and self._call.fills:
                return msgspec.structs.replace(event, warning="")  # it concerns a bound that the client did not set
            return event

    async def _next_in_time(self, frame_call: FrameCall, until: float) -> Event | Progress | None:
        try:
            async with asyncio.timeout(until - time.monotonic()):
                return await frame_call.next()
        except TimeoutError:
            raise too_late(self._lease.entry.model) from None


def _abort(call: FrameCall, error: RoundhouseError) -> None:
    """End a call with an error. A revoked batch line keeps its turn and place until it has left the engine."""
    if error.code == REVOKED:
        call.stop(error)
    else:
        call.fail(error)


def too_late(model: str) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"The request's deadline passed before '{model}' had answered. Send it again with more time, or later."
    )
