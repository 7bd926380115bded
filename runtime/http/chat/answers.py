"""Reads vLLM's answers, for the dialects that write them anew."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable

import msgspec
from msgspec import UNSET, UnsetType

from models import sse
from models.messages import Chunk, Event, ResponseStart
from registry.base.json import NOT_JSON
from registry.errors import by_status
from routing.providers.translation.completions import ChatDelta, ChatUsage


class TopTokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | UnsetType | None = UNSET
    """The token's bytes, which for a part of a character are not those of its text."""


class TokenLogprob(TopTokenLogprob):
    top_logprobs: list[TopTokenLogprob] = []


class EngineLogprobs(msgspec.Struct):
    content: list[TokenLogprob] | None = None


class EngineChoice(msgspec.Struct):
    message: ChatDelta | None = None
    delta: ChatDelta | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """The matched stop string, in a field of vLLM's."""
    logprobs: EngineLogprobs | None = None


class EngineError(msgspec.Struct):
    message: str = ""
    code: int | str | None = None


class EngineAnswer(msgspec.Struct):
    """A complete answer or one event of a stream."""

    choices: list[EngineChoice] = []
    usage: ChatUsage | None = None
    error: EngineError | None = None


def read(data: bytes, status: int = 500) -> EngineAnswer:
    """Decode an answer. Raises the error in it; `status` is used if that has none."""
    try:
        answer = msgspec.json.decode(data, type=EngineAnswer, strict=False)  # a provider may count tokens as 12.0
    except NOT_JSON:
        answer = EngineAnswer(error=EngineError("The engine's answer cannot be read."))
    if answer.error is not None:
        code = answer.error.code
        if isinstance(code, int):  # vLLM's own errors repeat the status
            status, code = code, None
        raise by_status(status)(answer.error.message, code=code)
    return answer


Refuse = Callable[[int, bytes], object]
"""Raises the error of an answer with status 400 or above."""


def _refuse(status: int, data: bytes) -> None:
    read(data, status)


async def read_engine_answer(events: AsyncIterator[Event], refuse: Refuse = _refuse) -> bytes:
    """Read the complete body of an engine's answer."""
    status, data = 200, bytearray()
    async for event in events:
        if isinstance(event, ResponseStart):
            status = event.status
        elif isinstance(event, Chunk):
            data += event.data
    if status >= 400:
        refuse(status, bytes(data))
    return bytes(data)


async def read_engine_events(events: AsyncIterator[Event], refuse: Refuse = _refuse) -> AsyncGenerator[bytes, None]:
    """Yield the data of an engine's stream event by event, however they are split, without the last one's [DONE]."""
    status, refusal, reader = 200, b"", sse.Reader()
    async for event in events:
        if isinstance(event, ResponseStart):
            status = event.status
        elif not isinstance(event, Chunk):
            continue
        elif status >= 400:
            refusal += event.data
        else:
            for data in reader.feed(event.data):
                if data != sse.DONE:
                    yield data
    if status >= 400:
        refuse(status, refusal)
