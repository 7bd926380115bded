"""The backend for providers' models: a turn is a free connection, a call one attempt there."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Any

from models.messages import Event, Usage
from models.tasks import Call
from models.tasks.chat import ChatPayload
from registry.errors import NotFound
from registry.recipes.provider import Protocol
from routing.providers.call import ProviderCall
from routing.providers.connection import ClientDeadlines
from routing.providers.usage_bounds import EXCESS_USAGE
from runtime.gateway.backend import TargetState
from runtime.gateway.names import ModelRef
from runtime.gateway.providers.index import BACKEND, ProvidedModel, ProviderIndex
from runtime.gateway.request import Request
from runtime.gateway.target import Target, total
from tenants.caller import Caller
from tenants.ledger.rows import BATCH

BETA = "anthropic-beta"
BYTES_PER_TOKEN = 2
"""Assumed bytes per prompt token, lower than in nearly every text."""
MIN_OUTPUT = 16
"""Least bound on an answer's tokens if the client set none."""


class ProviderBackend:
    """`runtime.gateway.backend.Backend` and `RetryPolicy`, since failures may be temporary."""

    name = BACKEND
    relay = None

    def __init__(self, index: ProviderIndex) -> None:
        self._index = index
        self.retry = self

    def resolve(self, model_ref: ModelRef, caller: Caller) -> Target | None:
        return self._index.resolve(model_ref, caller)

    def load_progress(self, target: Target) -> None:
        return None

    def context_length(self, target: Target) -> int | None:
        entry = self._index.entry_of(target)
        return None if entry is None else entry.model.context_length

    def state_of(self, target: Target) -> TargetState:
        return TargetState(is_local=False, is_resident=True, waiting=0)

    def total_timeout(self, target: Target) -> float | None:
        entry = self._index.entry_of(target)
        return None if entry is None else entry.upstream.provider.timeouts.whole

    def retry_delay(self, target: Target, error: Exception, attempts: int, seconds_left: float | None) -> float | None:
        entry = self._index.entry_of(target)
        return None if entry is None else entry.upstream.again(error, attempts, seconds_left)

    @asynccontextmanager
    async def lease(self, request: Request, target: Target) -> "AsyncIterator[ProviderLease]":
        entry = self._index.entry_of(target)
        if entry is None:
            raise NotFound(f"'{target.model}' was removed.", param="model")
        is_line = request.context.source == BATCH
        entry.upstream.enter(target.model not in request.tried, is_line=is_line)
        try:
            yield ProviderLease(request, target, entry)
        finally:
            entry.upstream.leave(is_line=is_line)


class ProviderLease:
    """`runtime.gateway.target.Lease`."""

    queued_seconds = load_seconds = swap_seconds = 0.0
    is_cold = uses_device = False
    revision = first_goal = replica_reason = None
    pool = ""
    replica = 0

    def __init__(self, request: Request, target: Target, entry: ProvidedModel) -> None:
        self._request, self._target, self._entry = request, target, entry
        self._attempts: list[ProviderCall] = []

    @property
    def context_length(self) -> int | None:
        return self._entry.model.context_length

    @property
    def usage(self) -> Usage:
        return total(attempt.usage for attempt in self._attempts)

    @property
    def flag(self) -> str | None:
        """Code if the provider reported more usage than is possible; the ledger then records the most that is."""
        return EXCESS_USAGE if any(attempt.has_excess for attempt in self._attempts) else None

    async def run(self, call: Call) -> AsyncIterator[Event]:
        until = ClientDeadlines(_on_loop(self._request.context.first_by), _on_loop(self._request.context.deadline))
        trace, entry = self._request.trace, self._entry
        calling = trace.calling(self._target.provider, entry.model.name) if trace is not None else nullcontext({})
        with calling as headers:
            passed = {**headers, **self._beta_headers}
            attempt = ProviderCall(
                entry.upstream, entry.model, self._target.requested, self._request.context.id, until, passed
            )
            self._attempts.append(attempt)
            events = attempt.chat(call.path, self._body(call)) if isinstance(call, ChatPayload) else attempt.task(call)
            async with aclosing(events):
                async for event in events:
                    yield event

    @property
    def _beta_headers(self) -> Mapping[str, str]:
        """Beta headers from Anthropic's clients, without which Anthropic refuses their fields."""
        if self._entry.upstream.provider.protocol is not Protocol.ANTHROPIC:
            return {}
        betas = [value.decode("latin-1") for name, value in self._request.context.headers if name == BETA.encode()]
        return {BETA: ",".join(betas)} if betas else {}

    def _body(self, call: ChatPayload) -> Mapping[str, Any]:
        """The call's body with the provider's name for the bound on an answer, if the client did not choose that name.

        An unbounded answer is capped at the rest of the context, since providers refuse more.
        """
        if call.is_translated:
            bound = self._entry.upstream.provider.bound
            return {bound if name == "max_tokens" else name: value for name, value in call.body.items()}
        requested, prompt = call.body.get("max_tokens"), call.body.get("prompt")
        if not call.fills or not isinstance(requested, int) or not isinstance(prompt, str):
            return call.body
        model, longest = self._entry.model, len(prompt.encode(errors="replace")) // BYTES_PER_TOKEN + 1
        room = requested if model.context_length is None else model.context_length - longest
        return {**call.body, "max_tokens": max(MIN_OUTPUT, min(requested, model.max_output, room))}


def _on_loop(moment: float | None) -> float | None:
    """Convert monotonic seconds to the event loop's clock, which may differ."""
    return None if moment is None else asyncio.get_running_loop().time() + moment - time.monotonic()
