"""Providers as a backend: a turn is a free connection, a call is one attempt."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Any

from models.messages import Event, Usage
from registry.errors import NotFound
from registry.recipes.provider import Protocol
from routing.providers.attempt import Attempt
from routing.providers.connection import Until
from runtime.gateway.backend import LOCAL, Call, ChatPayload, Coming, Target, total
from runtime.gateway.context import RequestContext
from runtime.gateway.providers.directory import Directory, ProvidedModel

BETA = "anthropic-beta"
BYTES_PER_TOKEN = 2
"""Of a prompt: nearly every text has more."""
LEAST = 16
"""Tokens of an answer for which nobody named a number, as where none is sent."""


class ProviderBackend:
    """`runtime.gateway.backend.Backend`."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def handles(self, target: Target) -> bool:
        return target.backend != LOCAL  # also of one that has left meanwhile: what is under way there ends as it does

    def coming(self, target: Target) -> Coming | None:
        return None

    def again(self, context: RequestContext, target: Target, error: Exception) -> float | None:
        place = self._directory.at(target)
        if place is None:
            return None
        return place.upstream.again(error, context.tried.count(target.model) + 1, context.seconds_left())

    def patience(self, target: Target) -> float | None:
        place = self._directory.at(target)
        return None if place is None else place.upstream.provider.timeouts.whole

    def hedge_after(self, target: Target) -> float | None:
        place = self._directory.at(target)
        return None if place is None else place.upstream.provider.hedge_after

    def spare(self, target: Target) -> bool:
        place = self._directory.at(target)
        return place is not None and place.upstream.spare(place.model)

    @asynccontextmanager
    async def lease(self, context: RequestContext, target: Target) -> "AsyncIterator[ProviderLease]":
        place = self._directory.at(target)
        if place is None:
            raise NotFound(f"'{target.model}' was removed.", param="model")
        place.upstream.enter(first=target.model not in context.tried)
        try:
            yield ProviderLease(context, target, place)
        finally:
            place.upstream.leave()


class ProviderLease:
    """`runtime.gateway.backend.Lease`."""

    queued_seconds = load_seconds = swap_seconds = 0.0
    pool = ""
    first_goal = None

    def __init__(self, context: RequestContext, target: Target, place: ProvidedModel) -> None:
        self._context, self._target, self._place = context, target, place
        self._attempts: list[Attempt] = []

    @property
    def context_length(self) -> int | None:
        return self._place.model.context_length

    @property
    def usage(self) -> Usage:
        return total(attempt.usage for attempt in self._attempts)

    async def run(self, call: Call) -> AsyncIterator[Event]:
        until = Until(_on_loop(self._context.first_by), _on_loop(self._context.deadline))
        trace, place = self._context.trace, self._place
        calling = trace.calling(self._target.backend, place.model.name) if trace is not None else nullcontext({})
        with calling as headers:
            passed = {**headers, **self._tried}
            attempt = Attempt(place.upstream, place.model, self._target.asked, self._context.id, until, passed)
            self._attempts.append(attempt)
            events = attempt.chat(call.path, self._body(call)) if isinstance(call, ChatPayload) else attempt.task(call)
            async with aclosing(events):
                async for event in events:
                    yield event

    @property
    def _tried(self) -> Mapping[str, str]:
        """What Anthropic's clients try of it before it is for everybody: it refuses their fields without."""
        if self._place.upstream.provider.protocol is not Protocol.ANTHROPIC:
            return {}
        told = [value.decode("latin-1") for name, value in self._context.headers if name == BETA.encode()]
        return {BETA: ",".join(told)} if told else {}

    def _body(self, call: ChatPayload) -> Mapping[str, Any]:
        """An answer that may fill the context asks for no more than is left of it: a provider refuses what is more."""
        wished, prompt = call.body.get("max_tokens"), call.body.get("prompt")
        if not call.fills or not isinstance(wished, int) or not isinstance(prompt, str):
            return call.body
        model, longest = self._place.model, len(prompt.encode(errors="replace")) // BYTES_PER_TOKEN + 1
        room = wished if model.context_length is None else model.context_length - longest
        return {**call.body, "max_tokens": max(LEAST, min(wished, model.max_output, room))}


def _on_loop(at: float | None) -> float | None:
    """Monotonic seconds by the event loop's clock, which may be another one."""
    return None if at is None else asyncio.get_running_loop().time() + at - time.monotonic()
