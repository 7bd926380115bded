"""One call to a provider: request, answer as engine events, and usage."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from models import sse
from models.messages import Chunk, EmbedRequest, Event, Message, ResponseEnd, ResponseStart, Usage
from registry.base.json import NOT_JSON
from registry.base.lazy import import_in_thread
from registry.errors import BadRequest, ProviderFailed
from registry.recipes.definition import Task
from registry.recipes.provider import ProviderModel, Surface
from routing.providers import faults, usage_bounds
from routing.providers.connection import Body, ClientDeadlines, Reply, without_key
from routing.providers.pass_through import AnswerProgress, BadAnswer, ErrorEvent, PassThrough, is_other_model
from routing.providers.plan import PlannedCall, plan
from routing.providers.tasks import PROVIDER_TASKS, TaskAnswer
from routing.providers.upstream import Upstream
from routing.providers.usage_bounds import UsageBounds

log = logging.getLogger("roundhouse.providers")

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"
LONGEST_EVENT = 4 * 2**20
MAX_HELD_BACK = 2**20
"""Most bytes of events held back before the first words. Until then, an error can still set the response's status."""
BYTES_PER_TOKEN = 4
"""Bytes per prompt token, for estimates before the provider reports usage."""
CONTENT_FIELDS = {
    Surface.CHAT: "choices",
    Surface.COMPLETIONS: "choices",
    Surface.RESPONSES: "output",
    Surface.MESSAGES: "content",
    Surface.COUNT_TOKENS: "input_tokens",
}
"""The field of an unstreamed answer with its content."""
INLINE = re.compile(rb"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{1024,}")
"""Inline images and audio in a prompt."""
INLINE_TOKENS = 1000
"""Tokens per inline image or audio, roughly as vendors count them."""
Events = AsyncGenerator[Event, None]


class ProviderCall:
    """One call. `usage` is current at any time.

    Args:
        public_name: the model name that the client sees.
        until: how long the client waits.
        passed: additional headers to send.
    """

    def __init__(
        self,
        upstream: Upstream,
        model: ProviderModel,
        public_name: str,
        request_id: str,
        until: ClientDeadlines,
        passed: Mapping[str, str],
    ) -> None:
        self._upstream, self._model, self._public_name, self._request_id = upstream, model, public_name, request_id
        self._until, self._passed = until, passed
        self._sent_at: float | None = None
        """Time of sending, on the loop's clock. None if not sent yet, or once a status has arrived."""
        self._refusal: BadRequest | None = None
        """The error if the request is the client's fault, which says nothing about the provider."""
        self._progress: AnswerProgress | None = None
        self._passing: PassThrough | None = None
        self._prompt = b""
        self._is_read = False
        """Whether the provider has received the prompt and has not reported doing nothing with it."""
        self._usage: Usage | None = None
        self._bounds = UsageBounds(0)
        self._excess: Usage | None = None
        """The provider's reported usage, if it exceeds what the request can have."""

    @property
    def usage(self) -> Usage:
        """Usage as reported, or an estimate if the answer broke off before."""
        if self._usage is not None:
            return self._usage
        reported = self._bounded(self._progress.usage) if self._progress else Usage()
        if not (self._is_read or self.begun):
            return reported
        return Usage(
            prompt_tokens=reported.prompt_tokens or self._estimated,
            completion_tokens=max(reported.completion_tokens, self._passing.pieces if self._passing else 0),
            cached_tokens=reported.cached_tokens,
            written_tokens=reported.written_tokens,
        )

    @property
    def has_excess(self) -> bool:
        """Whether the provider reported more usage than the request can have."""
        return self._excess is not None

    def _bounded(self, reported: Usage) -> Usage:
        bounded = self._bounds.cut(reported)
        if bounded != reported:
            self._excess = reported
        return bounded

    @property
    def _estimated(self) -> int:
        """Estimated prompt tokens, limited to the context length for chat."""
        most = self._model.context_length if self._model.task is Task.CHAT else None
        return estimated(self._prompt, most)

    @property
    def begun(self) -> bool:
        return self._passing is not None and self._passing.begun

    async def chat(self, path: str, body: Mapping[str, Any]) -> Events:
        planned = plan(self._upstream.provider, self._model, path, body)
        self._prompt = planned.body
        self._bounds = usage_bounds.of_chat(planned.body, self._model.context_length)
        async with aclosing(self._guarded(self._chat(planned))) as events:
            async for event in events:
                yield event

    async def task(self, request: Message) -> Events:
        """Run a request of a task in `tasks.PROVIDER_TASKS`, which has all but chat."""
        task = PROVIDER_TASKS[type(request)]
        if isinstance(request, EmbedRequest):
            await import_in_thread("numpy")  # needed to read the vectors
        body = task.body(request, self._model)
        self._prompt = body if isinstance(body, bytes) else b""
        self._bounds = task.most_usage(request, self._prompt)
        surface = task.surface(self._upstream.provider, request)
        async with aclosing(self._guarded(self._run(surface, body, lambda data: task.read(data, request)))) as guarded:
            async for event in guarded:
                yield event

    async def _guarded(self, events: Events) -> Events:
        """Run a call between the breaker's two steps, and convert invalid answers into errors."""
        permit = self._upstream.admit(self._model)
        error: BaseException | None = None
        is_first = True
        try:
            async with aclosing(events):
                async for event in events:
                    if is_first and self._refusal is None:
                        self._upstream.begun(self._model, permit)
                    is_first = False
                    yield event
        except (BadAnswer, ErrorEvent, sse.TooLong) as broken:
            error, self._is_read = self._failure(broken), False
            raise error from None
        except BaseException as other:
            error = other
            raise
        finally:
            quiet = 0.0 if self._sent_at is None else asyncio.get_running_loop().time() - self._sent_at
            if self._excess is not None:
                self._warn_of_excess(self._excess, self.usage)
            refused, is_excess = error or self._refusal, self.has_excess
            self._upstream.ended(self._model, permit, refused, self.begun, quiet, excess=is_excess)

    def _warn_of_excess(self, reported: Usage, counted: Usage) -> None:
        log.warning(
            "provider %s reported more usage than request %s to '%s' can have: %d prompt and %d completion tokens; "
            "counted as %d and %d. Check its bill.",
            self._upstream.provider.id,
            self._request_id,
            self._model.name,
            reported.prompt_tokens,
            reported.completion_tokens,
            counted.prompt_tokens,
            counted.completion_tokens,
        )

    def _failure(self, broken: Exception) -> ProviderFailed | BadRequest:
        provider = self._upstream.provider.id
        match broken:
            case ErrorEvent():
                body = without_key(self._upstream.provider, broken.data)
                if faults.is_the_clients(200, body):
                    return self._refused_with(faults.read(body))
                return faults.failure(provider, 200, body, {})
            case BadAnswer():
                return faults.bad_answer(provider, str(broken))
            case _:
                return faults.bad_answer(provider, "sends an event that does not end")

    @asynccontextmanager
    async def _send(self, surface: Surface, body: Body) -> AsyncIterator[Reply]:
        connection = await self._upstream.connect()
        self._sent_at = asyncio.get_running_loop().time()
        passed = {"x-request-id": self._request_id, **self._passed}
        async with connection.request("POST", surface, body, passed, self._until, self._is_sent) as reply:
            self._sent_at, self._is_read = None, reply.is_answer
            yield reply

    def _is_sent(self) -> None:
        self._is_read = True

    # --- the chat family --------------------------------------------------------------------------------------------
    async def _chat(self, planned: PlannedCall) -> Events:
        async with self._send(planned.surface, planned.body) as reply:
            if not reply.is_answer:
                body, _ = await self._refused(reply)
                yield ResponseStart(reply.status, JSON)
                yield Chunk(body)
                yield ResponseEnd(Usage())
                return
            if planned.stream != reply.is_stream:
                if planned.stream and "json" in reply.content_type:  # a stream may not end, so it is not read
                    await self._object(planned, reply)  # raises a more specific error, if it is one
                raise BadAnswer("answered with a stream where none was requested, or without one where it was")
            events = self._streamed(planned, reply) if planned.stream else self._whole(planned, reply)
            async with aclosing(events):
                async for event in events:
                    yield event

    async def _refused(self, reply: Reply) -> tuple[bytes, BadRequest]:
        """Return the client's fault as body and error. Raises ProviderFailed if it is the provider's."""
        body = await reply.error_body()
        if not faults.is_the_clients(reply.status, body):
            raise faults.failure(self._upstream.provider.id, reply.status, body, reply.headers)
        words = faults.read(body)
        words.message = words.message or f"The provider refused this request with status {reply.status}."
        return msgspec.json.encode({"error": words}), self._refused_with(words)

    def _refused_with(self, words: faults.ErrorWords) -> BadRequest:
        self._refusal = BadRequest(
            words.message, code=words.code if isinstance(words.code, str) else None, param=words.param
        )
        return self._refusal

    async def _object(self, planned: PlannedCall, reply: Reply) -> tuple[bytes, dict[str, msgspec.Raw]]:
        """Return an unstreamed answer and its fields. Raises BadAnswer, ErrorEvent."""
        progress = self._progress = AnswerProgress(self._public_name)
        data, parts = progress.object(await reply.whole())
        if bytes(parts.get("error", b"null")) != b"null":
            raise ErrorEvent(data)
        name = CONTENT_FIELDS[planned.surface]
        content = bytes(parts.get(name, b"null"))
        if content == b"null" or (name, content) == ("choices", b"[]"):
            if faults.is_error(data):
                raise ErrorEvent(data)
            raise BadAnswer(f"answered with an object without {name}")
        if name == "choices":
            try:
                choices = msgspec.json.decode(content, type=list[dict[str, msgspec.Raw]])
            except NOT_JSON:
                raise BadAnswer("answered with choices that are no list of objects") from None
            messages = [bytes(choice.get("message", b"")) for choice in choices]
            if planned.surface is Surface.CHAT and not all(message.startswith(b"{") for message in messages):
                raise BadAnswer("answered with a choice without a message")
        return data, parts

    def _counted(self, reported: Usage, text_bytes: int = 0) -> Usage:
        """Return the reported usage, or an estimate from `text_bytes` bytes of text."""
        if reported.prompt_tokens or reported.completion_tokens:
            return reported
        return msgspec.structs.replace(
            reported, prompt_tokens=self._estimated, completion_tokens=text_bytes // BYTES_PER_TOKEN
        )

    async def _whole(self, planned: PlannedCall, reply: Reply) -> Events:
        data, parts = await self._object(planned, reply)
        usage, warning = self._bounded(self._progress.usage if self._progress else Usage()), self._other_model()
        if planned.surface is not Surface.COUNT_TOKENS:
            usage = self._counted(usage, len(bytes(parts[CONTENT_FIELDS[planned.surface]])))
        if planned.translator is not None:
            data = planned.translator.whole(data)
        self._usage = usage
        yield ResponseStart(200, JSON, warning)
        yield Chunk(data)
        yield ResponseEnd(usage)

    async def _streamed(self, planned: PlannedCall, reply: Reply) -> Events:
        passing = self._passing = PassThrough(planned.surface, self._public_name, planned.wants_usage)
        self._progress = passing.progress
        splitter, buffer, opened = sse.Splitter(LONGEST_EVENT), bytearray(), False
        async for data in _ended(reply.chunks(lambda: passing.begun)):
            for event in splitter.feed(data):
                passed = passing.take(event)
                if passed is not None:
                    buffer += passed if planned.translator is None else planned.translator.event(passed)
                if passing.ended:
                    break
            if buffer and (opened or passing.begun or len(buffer) > MAX_HELD_BACK):
                if not opened:
                    yield ResponseStart(200, EVENTS, self._other_model())
                    opened = True
                yield Chunk(bytes(buffer))
                buffer.clear()
            if passing.ended:
                break
        if not passing.ended:
            passing.at_end()
        if not passing.begun:
            raise BadAnswer("ended its answer before the first words")
        buffer += b"" if planned.translator is None else planned.translator.end()
        if not opened:
            yield ResponseStart(200, EVENTS, self._other_model())
        if buffer:
            yield Chunk(bytes(buffer))
        await reply.release()
        completion_tokens = self._bounded(passing.progress.usage).completion_tokens or passing.pieces
        self._usage = msgspec.structs.replace(self.usage, completion_tokens=completion_tokens)
        yield ResponseEnd(self._usage)

    def _other_model(self) -> str:
        """Return a warning if another model answered. Raises BadAnswer if that is not allowed."""
        answered_by = self._progress.model if self._progress else None
        if not is_other_model(self._model.name, answered_by):
            return ""
        if self._model.exact:
            raise BadAnswer(f"answered with model '{str(answered_by)[:100]}' and not with '{self._model.name}'")
        public_name = "".join(c if c.isascii() and c.isprintable() else "?" for c in str(answered_by)[:100])
        return f"the provider says that model {public_name} answered"

    # --- the other tasks --------------------------------------------------------------------------------------------
    async def _run(self, surface: Surface, body: Body, read: Callable[[bytes], TaskAnswer]) -> Events:
        """Yield the events of an answer, preceded by a warning if another model answered.

        Raises as `_other_model` does.
        """
        async with self._send(surface, body) as reply:
            if not reply.is_answer:
                _, refusal = await self._refused(reply)
                raise refusal
            data = await reply.whole()
        try:
            events, usage, answered_by = read(data)
        except BadAnswer:
            if faults.is_error(data):
                raise ErrorEvent(data) from None
            raise
        self._usage = self._bounded(self._counted(usage))
        self._progress = AnswerProgress(self._public_name, model=answered_by)
        if warning := self._other_model():
            yield ResponseStart(200, JSON, warning)
        for event in events:
            yield event
        yield ResponseEnd(self._usage)


async def _ended(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Append the empty line that some servers omit after their last event."""
    async for chunk in chunks:
        yield chunk
    yield b"\n\n"


def estimated(prompt: bytes, most: int | None) -> int:
    """Estimate the tokens of a prompt. most: upper bound."""
    inline = INLINE.findall(prompt)
    tokens = (len(prompt) - sum(map(len, inline))) // BYTES_PER_TOKEN + INLINE_TOKENS * len(inline)
    return tokens if most is None else min(tokens, most)
