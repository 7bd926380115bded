"""Providers as a backend: a turn is a free connection, a call is one attempt."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Any

from models.messages import Event, Usage
from registry.errors import NotFound
from registry.recipes.provider import Protocol
from routing.providers.call import ProviderCall
from routing.providers.connection import ClientDeadlines
from runtime.gateway.backend import LOCAL, Call, ChatPayload, LoadProgress, Target, total
from runtime.gateway.context import RequestContext
from runtime.gateway.providers.index import ProvidedModel, ProviderIndex

BETA = "anthropic-beta"
BYTES_PER_TOKEN = 2
"""Of a prompt: nearly every text has more."""
MIN_OUTPUT = 16
"""Tokens of an answer for which nobody named a number, as where none is sent."""


class ProviderBackend:
    """`runtime.gateway.backend.Backend`."""

    def __init__(self, index: ProviderIndex) -> None:
        self._index = index

    def handles(self, target: Target) -> bool:
        return target.backend != LOCAL  # also of one that has left meanwhile: what is under way there ends as it does

    def load_progress(self, target: Target) -> LoadProgress | None:
        return None

    def again(self, context: RequestContext, target: Target, error: Exception) -> float | None:
        entry = self._index.entry_of(target)
        if entry is None:
            return None
        return entry.upstream.again(error, context.tried.count(target.model) + 1, context.seconds_left())

    def total_timeout(self, target: Target) -> float | None:
        entry = self._index.entry_of(target)
        return None if entry is None else entry.upstream.provider.timeouts.whole

    def hedge_after(self, target: Target) -> float | None:
        entry = self._index.entry_of(target)
        return None if entry is None else entry.upstream.provider.hedge_after

    def spare(self, target: Target) -> bool:
        entry = self._index.entry_of(target)
        return entry is not None and entry.upstream.spare(entry.model)

    @asynccontextmanager
    async def lease(self, context: RequestContext, target: Target) -> "AsyncIterator[ProviderLease]":
        entry = self._index.entry_of(target)
        if entry is None:
            raise NotFound(f"'{target.model}' was removed.", param="model")
        entry.upstream.enter(first=target.model not in context.tried)
        try:
            yield ProviderLease(context, target, entry)
        finally:
            entry.upstream.leave()


class ProviderLease:
    """`runtime.gateway.backend.Lease`."""

    queued_seconds = load_seconds = swap_seconds = 0.0
    pool = ""
    first_goal = None

    def __init__(self, context: RequestContext, target: Target, entry: ProvidedModel) -> None:
        self._context, self._target, self._entry = context, target, entry
        self._attempts: list[ProviderCall] = []

    @property
    def context_length(self) -> int | None:
        return self._entry.model.context_length

    @property
    def usage(self) -> Usage:
        return total(attempt.usage for attempt in self._attempts)

    async def run(self, call: Call) -> AsyncIterator[Event]:
        until = ClientDeadlines(_on_loop(self._context.first_by), _on_loop(self._context.deadline))
        trace, entry = self._context.trace, self._entry
        calling = trace.calling(self._target.backend, entry.model.name) if trace is not None else nullcontext({})
        with calling as headers:
            passed = {**headers, **self._beta_headers}
            attempt = ProviderCall(entry.upstream, entry.model, self._target.requested, self._context.id, until, passed)
            self._attempts.append(attempt)
            events = attempt.chat(call.path, self._body(call)) if isinstance(call, ChatPayload) else attempt.task(call)
            async with aclosing(events):
                async for event in events:
                    yield event

    @property
    def _beta_headers(self) -> Mapping[str, str]:
        """What Anthropic's clients try of it before it is for everybody: it refuses their fields without."""
        if self._entry.upstream.provider.protocol is not Protocol.ANTHROPIC:
            return {}
        betas = [value.decode("latin-1") for name, value in self._context.headers if name == BETA.encode()]
        return {BETA: ",".join(betas)} if betas else {}

    def _body(self, call: ChatPayload) -> Mapping[str, Any]:
        """An answer that may fill the context asks for no more than is left of it: a provider refuses what is more."""
        requested, prompt = call.body.get("max_tokens"), call.body.get("prompt")
        if not call.fills or not isinstance(requested, int) or not isinstance(prompt, str):
            return call.body
        model, longest = self._entry.model, len(prompt.encode(errors="replace")) // BYTES_PER_TOKEN + 1
        room = requested if model.context_length is None else model.context_length - longest
        return {**call.body, "max_tokens": max(MIN_OUTPUT, min(requested, model.max_output, room))}


def _on_loop(moment: float | None) -> float | None:
    """Monotonic seconds by the event loop's clock, which may be another one."""
    return None if moment is None else asyncio.get_running_loop().time() + moment - time.monotonic()
