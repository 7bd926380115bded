"""One provider: its connections, a breaker per model, a budget of further attempts, and the calls under way."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from types import MappingProxyType
from typing import Any

from models.messages import (
    Chunk,
    EmbedRequest,
    Event,
    Finished,
    RerankRequest,
    Started,
    TranscribeRequest,
    Usage,
)
from registry.errors import BadRequest, ProviderFailed, ProviderOverloaded, QueueFull
from registry.recipes.provider import Provider, ProviderModel, Surface
from routing.providers import breaker, faults, retry, sse, tasks
from routing.providers.breaker import Breaker, Outcome, Permit
from routing.providers.connection import Connection, Reply
from routing.providers.passing import BadAnswer, ErrorEvent, Heard, Passing, another
from routing.providers.plan import Planned, plan

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"
LONGEST_EVENT = 4 * 2**20
HELD = 2**20
"""Bytes of events before the first words that are held back: until then an error can still be an error's status."""
BYTES_PER_TOKEN = 4
"""Of a prompt, where the answer broke off before the provider told."""
NO_TRACE: Mapping[str, str] = MappingProxyType({})
Events = AsyncGenerator[Event, None]
Told = Callable[[str, str, str], None]
"""Provider, model and outcome of an attempt, for metrics."""


class Upstream:
    """Args:
    clock, chance: monotonic seconds, and 0 to 1: tests give their own.
    """

    def __init__(
        self,
        provider: Provider,
        told: Told = lambda provider, model, outcome: None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.provider = provider
        self.breakers: dict[str, Breaker] = {model.name: Breaker() for model in provider.models}
        self.running = 0
        self._told, self._clock, self._chance = told, clock, chance
        self._budget = retry.Budget()
        self._connection: Connection | None = None
        self._left = asyncio.Event()

    @property
    def connection(self) -> Connection:
        """Made with the first request: before, there is no event loop."""
        if self._connection is None:
            self._connection = Connection(self.provider)
        return self._connection

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def leave_behind(self) -> None:
        """Closed once what is under way has ended."""
        while self.running:
            self._left.clear()
            await self._left.wait()
        await self.close()

    def enter(self, first: bool) -> None:
        """One request more. Raises QueueFull."""
        if self.running >= self.provider.connections:
            raise QueueFull(
                f"Provider '{self.provider.id}' has {self.running} requests under way, as many as its recipe allows.",
                code="provider_busy",
                retry_after=1,
            )
        self.running += 1
        if first:
            self._budget.asked()

    def leave(self) -> None:
        self.running -= 1
        self._left.set()

    def again(self, error: Exception, attempt: int, left: float | None) -> float | None:
        """Seconds until the same request may be sent once more; None: it may not."""
        if not (isinstance(error, ProviderFailed) and error.again) or attempt > self.provider.retries:
            return None
        seconds = retry.wait(attempt, error.retry_after, left, self._chance())
        return seconds if seconds is not None and self._budget.take() else None

    # --- the breaker ------------------------------------------------------------------------------------------------
    def admit(self, model: ProviderModel) -> Permit:
        """Raises ProviderOverloaded while it is open."""
        state, found = breaker.admit(self.breakers[model.name], self._clock())
        self.breakers[model.name] = state
        if isinstance(found, Permit):
            return found
        raise ProviderOverloaded(
            f"Provider '{self.provider.id}' failed too often with '{model.name}' and is left alone for now.",
            code="provider_open",
            retry_after=max(1.0, found.seconds),
            counts=False,
        )

    def ended(self, model: ProviderModel, permit: Permit, error: BaseException | None, begun: bool) -> None:
        """How an attempt ended. begun: words of an answer had come."""
        after = None
        if error is None or (begun and not isinstance(error, ProviderFailed)):
            outcome = Outcome.SUCCESS  # who leaves in mid-answer was answered
        elif isinstance(error, ProviderFailed) and error.counts:
            outcome, after = Outcome.FAILURE, error.retry_after
        else:
            outcome = Outcome.NEITHER
        before = self.breakers[model.name]
        self.breakers[model.name] = breaker.ended(before, permit, outcome, self._clock(), self._chance(), after)
        code = error.code if isinstance(error, ProviderFailed) else "left" if error is not None else "ok"
        self._told(self.provider.id, model.name, code)

    def attempt(
        self,
        model: ProviderModel,
        shown: str,
        request_id: str,
        by: float | None = None,
        trace: Mapping[str, str] = NO_TRACE,
    ) -> "Attempt":
        """by: when the whole request has to be answered, on the loop's clock. trace: headers that are passed on."""
        return Attempt(self, model, shown, request_id, by, trace)


class Attempt:
    """One call, once. `usage` is what is known of it at any time."""

    def __init__(
        self,
        upstream: Upstream,
        model: ProviderModel,
        shown: str,
        request_id: str,
        by: float | None,
        trace: Mapping[str, str] = NO_TRACE,
    ) -> None:
        self._upstream, self._model, self._shown, self._request_id = upstream, model, shown, request_id
        self._by, self._trace = by, trace
        self._heard: Heard | None = None
        self._passing: Passing | None = None
        self._sent = 0
        self._usage: Usage | None = None

    @property
    def usage(self) -> Usage:
        """As the provider told; of an answer that broke off before that, what can be seen of it."""
        if self._usage is not None:
            return self._usage
        told = self._heard.usage if self._heard else Usage()
        if self._passing is None or not self._passing.begun:
            return told
        return Usage(
            prompt_tokens=told.prompt_tokens or self._sent // BYTES_PER_TOKEN,
            completion_tokens=max(told.completion_tokens, self._passing.pieces),
            cached_tokens=told.cached_tokens,
        )

    @property
    def begun(self) -> bool:
        return self._passing is not None and self._passing.begun

    async def chat(self, path: str, body: Mapping[str, Any]) -> Events:
        planned = plan(self._upstream.provider, self._model, path, body)
        self._sent = len(planned.body)
        async with aclosing(self._guarded(self._chat(planned))) as events:
            async for event in events:
                yield event

    async def task(self, request: EmbedRequest | RerankRequest | TranscribeRequest) -> Events:
        match request:
            case EmbedRequest():
                events = self._embed(request, tasks.embed_body(request, self._model))
            case RerankRequest():
                events = self._rerank(request, tasks.rerank_body(request, self._model))
            case TranscribeRequest():
                events = self._transcribe(request)
        async with aclosing(self._guarded(events)) as guarded:
            async for event in guarded:
                yield event

    async def _guarded(self, events: Events) -> Events:
        """With the breaker before and after it, and a provider's nonsense as its error."""
        permit = self._upstream.admit(self._model)
        error: BaseException | None = None
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
        except BadAnswer as bad:
            error = faults.bad_answer(self._upstream.provider.id, str(bad))
            raise error from None
        except sse.TooLong:
            error = faults.bad_answer(self._upstream.provider.id, "sends an event that does not end")
            raise error from None
        except ErrorEvent as told:
            error = faults.failure(self._upstream.provider.id, 200, told.data, {})
            raise error from None
        except BaseException as other:
            error = other
            raise
        finally:
            self._upstream.ended(self._model, permit, error, self.begun)

    # --- the chat family --------------------------------------------------------------------------------------------
    async def _chat(self, planned: Planned) -> Events:
        async with self._upstream.connection.post(
            planned.surface, planned.body, self._request_id, self._by, self._trace
        ) as reply:
            if reply.status != 200:
                body = await self._refused(reply)
                yield Started(reply.status, JSON)
                yield Chunk(body)
                yield Finished(Usage())
                return
            if planned.stream != reply.is_stream:
                raise BadAnswer("answered with a stream, or none, where it was asked otherwise")
            events = self._streamed(planned, reply) if planned.stream else self._whole(planned, reply)
            async with aclosing(events):
                async for event in events:
                    yield event

    async def _refused(self, reply: Reply) -> bytes:
        """The body of what is the client's own fault. Raises what is not."""
        body = await reply.error_body()
        if faults.is_the_clients(reply.status, body):
            return body
        raise faults.failure(self._upstream.provider.id, reply.status, body, reply.headers)

    async def _whole(self, planned: Planned, reply: Reply) -> Events:
        heard = self._heard = Heard(self._shown)
        data, parts = heard.object(await reply.whole())
        if bytes(parts.get("error", b"null")) != b"null":
            raise ErrorEvent(data)
        warning = self._other_model()
        if planned.translator is not None:
            data = planned.translator.whole(data)
        yield Started(200, JSON, warning)
        yield Chunk(data)
        yield Finished(heard.usage)

    async def _streamed(self, planned: Planned, reply: Reply) -> Events:
        passing = self._passing = Passing(planned.surface, self._shown, planned.usage_wanted)
        self._heard = passing.heard
        splitter, held, opened = sse.Splitter(LONGEST_EVENT), bytearray(), False
        async for data in reply.chunks(lambda: passing.begun):
            for event in splitter.feed(data):
                passed = passing.take(event)
                if passed is not None:
                    held += passed if planned.translator is None else planned.translator.event(passed)
                if passing.ended:
                    break
            if held and (opened or passing.begun or passing.ended or len(held) > HELD):
                if not opened:
                    yield Started(200, EVENTS, self._other_model())
                    opened = True
                yield Chunk(bytes(held))
                held.clear()
            if passing.ended:
                break
        if not passing.ended:
            if splitter.has_rest:
                raise BadAnswer("broke off within an event")
            passing.at_end()
        if planned.translator is not None and (last := planned.translator.end()):
            yield Chunk(last)
        await reply.spare()
        self._usage = self.usage
        yield Finished(self._usage)

    def _other_model(self) -> str:
        """A warning, where another model answered. Raises BadAnswer where that is not allowed."""
        said = self._heard.model if self._heard else None
        if not another(self._model.name, said):
            return ""
        if self._model.exact:
            raise BadAnswer(f"answered with model '{str(said)[:100]}' and not with '{self._model.name}'")
        shown = "".join(c if c.isascii() and c.isprintable() else "?" for c in str(said)[:100])
        return f"the provider says that model {shown} answered"

    # --- the other tasks --------------------------------------------------------------------------------------------
    async def _asked(self, surface: Surface, body: Any) -> bytes:
        async with self._upstream.connection.post(surface, body, self._request_id, self._by, self._trace) as reply:
            if reply.status == 200:
                return await reply.whole()
            words = faults.read(await self._refused(reply))
            raise BadRequest(
                words.message or f"The provider refused this request with status {reply.status}.",
                code=words.code if isinstance(words.code, str) else None,
                param=words.param,
            )

    def _answered_by(self, said: str | None) -> str:
        self._heard = Heard(self._shown, model=said)
        return self._other_model()

    async def _embed(self, request: EmbedRequest, body: bytes) -> Events:
        result, usage, said = tasks.embedded(await self._asked(Surface.EMBEDDINGS, body), len(request.inputs))
        self._answered_by(said)
        self._usage = usage
        yield result
        yield Finished(usage)

    async def _rerank(self, request: RerankRequest, body: bytes) -> Events:
        result, usage, said = tasks.ranked(await self._asked(Surface.RERANK, body), len(request.documents))
        self._answered_by(said)
        self._usage = usage
        yield result
        yield Finished(usage)

    async def _transcribe(self, request: TranscribeRequest) -> Events:
        surface = Surface.TRANSLATIONS if request.task == "translate" else Surface.TRANSCRIPTIONS
        form = tasks.transcribe_form(request, self._model)
        info, segments, usage = tasks.transcribed(await self._asked(surface, form))
        self._usage = usage
        yield info
        for segment in segments:
            yield segment
        yield Finished(usage)


async def closing(upstreams: Mapping[str, Upstream]) -> None:
    """Close them all, whatever one of them says."""
    async with AsyncExitStack() as stack:
        for upstream in upstreams.values():
            stack.push_async_callback(upstream.close)
