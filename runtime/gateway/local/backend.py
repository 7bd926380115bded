"""Models of this machine as a backend: a turn in the model's queue, then a call to the slot that holds it."""

import asyncio
import hmac
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from adapters.types import StoredAdapter
from models.messages import AdapterRef, Chunk, Event, HttpCall, Progress, Request, ResponseStart, Usage
from registry.errors import DeadlineExceeded, Unavailable
from registry.files.context import context_of
from registry.records import Version
from runtime.gateway.backend import LOCAL, Call, ChatPayload, LoadPending, LoadProgress, Target, total
from runtime.gateway.context import RequestContext
from runtime.gateway.local.work import ANSWER_TOKEN, WorkEstimator, claim, work_of
from runtime.gateway.metrics import Metrics
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.scheduling.admission import SlotLease, unreachable
from runtime.scheduling.fair.accounts import QueueRequest
from runtime.slots import frames
from runtime.slots.link import FrameCall
from tenants.classes import ServiceClass

SALTED = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"))
"""Calls that leave something in an engine's prefix cache."""
TIERS = {ServiceClass.CRITICAL: "priority", ServiceClass.INTERACTIVE: "default", ServiceClass.BATCH: "flex"}
"""What OpenAI calls them."""

PROBE_FAILED = "The adapter's probe failed. Only the team that shares it is told more."


def reference(stored: StoredAdapter) -> AdapterRef:
    """A stored adapter as engines take it."""
    return AdapterRef(digest=stored.digest, path=str(stored.path), rank=stored.rank, bytes=stored.bytes)


def context_length(entry: ModelEntry) -> int | None:
    """As the engine told; before the first load, and after an unload, as recipe and files say."""
    return (entry.loaded.context_length if entry.loaded else 0) or context_of(entry.recipe, entry.path)


class LocalBackend:
    """`runtime.gateway.backend.Backend`.

    Args:
        stored: where the files of an adapter's version are.
    """

    def __init__(
        self, residency: ResidencyManager, stored: Callable[[Version], StoredAdapter], metrics: Metrics
    ) -> None:
        self._residency, self._stored, self._metrics = residency, stored, metrics
        self._foresight = dict[str, WorkEstimator]()

    def handles(self, target: Target) -> bool:
        return target.backend == LOCAL

    def load_progress(self, target: Target) -> LoadProgress | None:
        entry = self._residency.get(target.model)
        if entry.is_ready:
            return None
        progress = entry.progress
        return LoadProgress(progress.phase, progress.fraction) if progress else LoadProgress(entry.state.value, 0.0)

    def total_timeout(self, target: Target) -> float | None:
        return None

    def again(self, context: RequestContext, target: Target, error: Exception) -> float | None:
        return None  # its queue has waited already

    def hedge_after(self, target: Target) -> float | None:
        return None  # it would wait in the same queue

    def spare(self, target: Target) -> bool:
        return self.load_progress(target) is None  # its queue is bounded; nothing is loaded for it

    @asynccontextmanager
    async def lease(self, context: RequestContext, target: Target) -> "AsyncIterator[LocalLease]":
        entry = self._residency.get(target.model)
        if not entry.is_ready:
            self._metrics.cold.labels(entry.id).inc()
            if context.preference.respond_async:
                self._residency.request_load(entry)
                raise LoadPending(entry.id, max(1.0, self._residency.expected_wait(entry)))
        loads = not entry.is_ready
        adapter = None if target.version is None else reference(self._stored(target.version))
        if (foresight := self._foresight.get(entry.id)) is None:
            foresight = self._foresight[entry.id] = WorkEstimator(entry.recipe.task)
        queue_request = claim(context, target, entry.recipe, foresight)
        async with await self._turn(context, target, entry, adapter, queue_request) as turn:
            load_seconds = turn.queued_seconds if loads else 0.0
            calls = AsyncExitStack()
            lease = LocalLease(context, target, entry, adapter, turn, load_seconds, calls)
            try:
                async with calls:
                    yield lease
                # what ended before its time tells little of the next one
                foresight.learn(context.hints.size, target.label or "", lease.usage)
            finally:
                turn.set_work(work_of(lease.usage))

    async def _turn(
        self,
        context: RequestContext,
        target: Target,
        entry: ModelEntry,
        adapter: AdapterRef | None,
        queue_request: QueueRequest,
    ) -> SlotLease:
        """Wait for the model, a turn and the adapter's place, as long as the client wants to and its deadline lets."""
        wait, left = context.preference.wait, context.seconds_left()
        if left is not None:
            wait = min(left, entry.recipe.queue.max_wait if wait is None else wait)
        try:
            if left == 0.0:
                raise Unavailable("Its deadline passed on its way.")
            probe = target.version.probe if target.version else None
            foreseen = 0.0 if left is None or entry.is_ready else self._residency.expected_wait(entry)
            if left is not None and foreseen > left:
                self._residency.request_load(entry)  # else it would never come for who is always in a hurry
                raise unreachable(entry.id, foreseen, left)
            return await entry.queue.acquire(adapter, wait, probe, claim=queue_request)
        except Unavailable as error:
            if (
                error.code == "adapter_probe_failed"
                and target.version
                and target.version.key.team != queue_request.team
            ):
                raise Unavailable(PROBE_FAILED, code=error.code, retry_after=error.retry_after) from None
            if context.seconds_left() == 0.0:
                raise too_late(entry.id) from None
            if error.code == "queue_timeout" and not entry.is_ready:
                error.retry_after = max(error.retry_after or 1.0, self._residency.expected_wait(entry))
            raise


class LocalLease:
    """`runtime.gateway.backend.Lease`."""

    def __init__(
        self,
        context: RequestContext,
        target: Target,
        entry: ModelEntry,
        adapter: AdapterRef | None,
        turn: SlotLease,
        load_seconds: float,
        calls: AsyncExitStack,
    ) -> None:
        self._context, self._target, self._entry, self._adapter = context, target, entry, adapter
        self._turn, self._stack = turn, calls
        self._calls: list[FrameCall] = []
        self._tokens = 0
        self.queued_seconds, self.load_seconds = turn.queued_seconds, load_seconds
        self.swap_seconds = turn.swap_seconds

    @property
    def pool(self) -> str:
        return self._turn.pool

    @property
    def first_goal(self) -> float | None:
        pool = self._entry.recipe.pools.get(self.pool)
        return None if pool is None else pool.ttft

    @property
    def context_length(self) -> int | None:
        return context_length(self._entry)

    @property
    def usage(self) -> Usage:
        return total(call.usage for call in self._calls if call.usage is not None)

    async def run(self, call: Call) -> AsyncIterator[Event]:
        request = self._request(call)
        number = self._context.id
        made = self._turn.link.call(lambda uid: frames.Call(uid, request, number))
        self._calls.append(made)
        await self._stack.enter_async_context(made)
        self._watch_drain(made)
        events = made.events()
        if self._context.begin_by is not None:
            events = self._until(events)
        async for event in events:
            if isinstance(event, Chunk):
                self._made(event.data)
            elif isinstance(event, ResponseStart) and isinstance(call, ChatPayload) and call.fills:
                event = msgspec.structs.replace(event, warning="")  # of fewer tokens than a number that nobody named
            if not isinstance(event, Progress):
                yield event

    def _made(self, data: bytes) -> None:
        """A stream's tokens are charged as they come: what was foreseen may be far too little."""
        self._tokens += data.count(b"\n\n")
        self._turn.progress(self._tokens * ANSWER_TOKEN)

    def _request(self, call: Call) -> Request:
        if not isinstance(call, ChatPayload):
            return call
        served = self._adapter.digest if self._adapter else self._entry.id
        return HttpCall(
            path=call.path,
            body=msgspec.json.encode({**call.body, **self._salted(call), "model": served, **self._tier(call)}),
            served=served,
            display_name=self._target.requested,
            adapter=self._adapter,
            request_id=f"{self._context.id}-{secrets.token_hex(4)}",  # clients may send the same id twice
            priority=int(self._context.service_class),
            tier=TIERS[self._context.service_class] if self._context.hints.echoes_class else "",
            trace=dict(self._context.trace.headers) if self._context.trace else {},
        )

    def _salted(self, call: ChatPayload) -> dict[str, str]:
        """A team's prompts share no cache with another's: how soon an answer begins would tell what others asked."""
        team, own = self._context.caller.salt, call.body.get("cache_salt")
        if not team or call.path not in SALTED or not isinstance(own, str | None) or own == "":
            return {}
        return {"cache_salt": hmac.digest(team.encode(), (own or "").encode(), "sha256").hex()}

    def _tier(self, call: ChatPayload) -> dict[str, str]:
        """Responses say it as they were asked."""
        echoes_tier = call.path == "/v1/responses" and self._context.hints.echoes_class
        return {"service_tier": TIERS[self._context.service_class]} if echoes_tier else {}

    def _watch_drain(self, call: FrameCall) -> None:
        """A drain deadline ends the call with its error."""
        aborted = self._turn.ticket.aborted
        if aborted is not None:
            aborted.add_done_callback(lambda done: None if done.cancelled() else call.fail(done.result()))

    async def _until(self, events: AsyncIterator[Event | Progress]) -> AsyncGenerator[Event | Progress, None]:
        until = self._context.begin_by
        while True:
            try:
                async with asyncio.timeout(None if until is None else until - time.monotonic()):
                    event = await anext(events)
            except TimeoutError:
                raise too_late(self._entry.id) from None
            except StopAsyncIteration:
                return
            if not isinstance(event, Progress):
                until = self._context.deadline
            yield event


def too_late(model: str) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"The request's deadline passed before '{model}' had answered. Send it again with more time, or later."
    )
