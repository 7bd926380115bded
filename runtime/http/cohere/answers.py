"""Converts vLLM's answers, streamed or not, to Cohere's, and vectors to Cohere's embedding types."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from registry.base.lazy import LazyModule
from registry.errors import EngineFailed
from routing.providers.translation.completions import CUT, GAVE_UP, ChatDelta, ChatUsage
from runtime.http.chat.answers import EngineAnswer, EngineChoice, read
from runtime.http.embeddings.bodies import Matrix, base64, numbers, write_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")

Json = dict[str, Any]


# --- schemas ---------------------------------------------------------------------------------------------------------
class CohereAnswerContent(msgspec.Struct, omit_defaults=True):
    type: str
    text: str | None = None
    thinking: str | None = None


class CohereCalledFunction(msgspec.Struct):
    name: str
    arguments: str


class CohereCall(msgspec.Struct):
    id: str
    type: str
    function: CohereCalledFunction


class CohereAnswerMessage(msgspec.Struct, omit_defaults=True):
    role: str
    content: list[CohereAnswerContent] | None = None
    tool_calls: list[CohereCall] | None = None


class CohereTokens(msgspec.Struct):
    input_tokens: int
    output_tokens: int


class CohereUsage(msgspec.Struct, omit_defaults=True):
    billed_units: CohereTokens
    tokens: CohereTokens
    cached_tokens: int | None = None


class CohereChat(msgspec.Struct):
    """The answer of /v2/chat."""

    id: str
    finish_reason: str
    message: CohereAnswerMessage
    usage: CohereUsage


class CohereApiVersion(msgspec.Struct):
    version: str = "2"
    is_experimental: bool = False


class CohereInputTokens(msgspec.Struct):
    input_tokens: int


class CohereMeta(msgspec.Struct):
    billed_units: CohereInputTokens
    api_version: CohereApiVersion = msgspec.field(default_factory=CohereApiVersion)


class CohereVectors(msgspec.Struct):
    """The answer of /v2/embed. `embeddings` has a list of vectors for each type."""

    id: str
    embeddings: dict[str, list[list[float] | str]]
    texts: list[str]
    meta: CohereMeta
    response_type: str = "embeddings_by_type"


class CohereVectorsV1(msgspec.Struct):
    """The answer of /v1/embed. `embeddings` has lists by type if the request names types, else one list of vectors."""

    id: str
    embeddings: dict[str, list[list[float] | str]] | list[list[float]]
    texts: list[str]
    meta: CohereMeta
    response_type: Literal["embeddings_by_type", "embeddings_floats"]


# --- chat ------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class CohereWriter:
    """Writes the answer to one request."""

    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    usage: ChatUsage = field(default_factory=ChatUsage)
    reason: str | None = None
    """The finish reason. None until the engine has sent it."""
    _has_calls: bool = False
    _blocks: int = 0
    _calls: int = 0
    """Finished blocks of text and thinking, and finished calls, which Cohere numbers separately."""
    _open: str | None = None
    """The open part: text, thinking or call."""
    _call: Any = None
    """The engine's index of the open call."""

    def whole(self, data: bytes) -> CohereChat:
        """The complete answer. Raises EngineFailed for an incomplete completion."""
        answer = read(data)
        if not answer.choices:
            raise EngineFailed("The engine's answer holds no text.")
        part = answer.choices[0].message or ChatDelta()
        calls = [
            CohereCall(call.id or "", "function", CohereCalledFunction(call.function.name or "", text))
            for call in part.tool_calls or ()
            if (text := call.function.arguments_text) is not None
        ]
        self._has_calls = bool(calls)
        self._note(answer, answer.choices[0])
        content = [CohereAnswerContent("thinking", thinking=part.reasoning_text)] if part.reasoning_text else []
        if part.visible_text or not calls:
            content.append(CohereAnswerContent("text", text=part.visible_text))
        message = CohereAnswerMessage("assistant", content or None, calls or None)
        return CohereChat(self.id, self._finish_reason, message, self._usage)

    def start(self) -> Json:
        return {"type": "message-start", "id": self.id, "delta": {"message": {"role": "assistant"}}}

    def events(self, data: bytes) -> Iterator[Json]:
        """Translate an event of the engine's stream into Cohere's events."""
        answer = read(data)
        choice = answer.choices[0] if answer.choices else EngineChoice()
        self._note(answer, choice)
        part = choice.delta or ChatDelta()
        for kind, text in (("thinking", part.reasoning_text), ("text", part.visible_text)):
            if text:
                if self._open != kind:
                    yield from self._close()
                    self._open = kind
                    yield self._content("content-start", {"type": kind, kind: ""})
                yield self._content("content-delta", {kind: text})
        for call in part.tool_calls or ():
            if call.index != self._call or self._open != "call":
                yield from self._close()
                self._open, self._call, self._has_calls = "call", call.index, True
                function = {"name": call.function.name or "", "arguments": ""}
                yield self._of_call("tool-call-start", {"id": call.id or "", "type": "function", "function": function})
            if arguments := call.function.arguments_text:
                yield self._of_call("tool-call-delta", {"function": {"arguments": arguments}})

    def end(self) -> Iterator[Json]:
        yield from self._close()
        delta = {"finish_reason": self._finish_reason, "usage": self._usage}
        yield {"type": "message-end", "id": self.id, "delta": delta}

    def _content(self, kind: str, content: Json) -> Json:
        return {"type": kind, "index": self._blocks, "delta": {"message": {"content": content}}}

    def _of_call(self, kind: str, call: Json) -> Json:
        return {"type": kind, "index": self._calls, "delta": {"message": {"tool_calls": call}}}

    def _close(self) -> Iterator[Json]:
        if self._open == "call":
            yield {"type": "tool-call-end", "index": self._calls}
            self._calls += 1
        elif self._open is not None:
            yield {"type": "content-end", "index": self._blocks}
            self._blocks += 1
        self._open = None

    def _note(self, answer: EngineAnswer, choice: EngineChoice) -> None:
        if answer.usage is not None:
            self.usage = answer.usage
        if choice.finish_reason is None:
            return
        if choice.finish_reason in GAVE_UP:
            raise EngineFailed(f"The answer ended before it was complete: {choice.finish_reason}.")
        self.reason = "STOP_SEQUENCE" if isinstance(choice.stop_reason, str) else "COMPLETE"
        if choice.finish_reason in CUT:
            self.reason = "MAX_TOKENS"

    @property
    def _finish_reason(self) -> str:
        return "TOOL_CALL" if self._has_calls and self.reason == "COMPLETE" else self.reason or "ERROR"

    @property
    def _usage(self) -> CohereUsage:
        tokens = CohereTokens(self.usage.prompt_tokens or 0, self.usage.output_tokens)
        return CohereUsage(tokens, tokens, self.usage.cached or None)


# --- embeddings ------------------------------------------------------------------------------------------------------
def _int8(rows: Matrix) -> "NDArray[np.float32]":
    """Scale each vector so that its largest value is 127, which keeps cosines. Zero vectors stay unchanged."""
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0)
    scaled: NDArray[np.float32] = np.rint(rows * (127 / np.where(largest > 0, largest, 1)))
    return scaled


def _ubinary(rows: Matrix) -> "NDArray[np.uint8]":
    """One bit per dimension, set if the value is above 0. The first is the highest bit of its byte."""
    return np.packbits(rows > 0, axis=1)


TYPES: Mapping[str, Callable[[Matrix], list[bytes]]] = {
    "float": numbers,
    "base64": base64,
    "int8": lambda rows: numbers(_int8(rows).astype(np.int8)),
    "uint8": lambda rows: numbers((_int8(rows) + 128).astype(np.uint8)),
    "binary": lambda rows: numbers((_ubinary(rows).astype(np.int16) - 128).astype(np.int8)),
    "ubinary": lambda rows: numbers(_ubinary(rows)),
}
"""Formats rows as JSON, by type."""


async def vectors_json(vectors: Matrix, types: Sequence[str], texts: Sequence[str], tokens: int, version: str) -> bytes:
    """The body of /v2/embed, and of /v1/embed. types: empty for one list of vectors, as from version 1."""
    lists = [b'"%s":[%s]' % (kind.encode(), b",".join(await write_rows(vectors, TYPES[kind]))) for kind in types]
    kind, rows = b"embeddings_by_type", b"{%s}" % b",".join(lists)
    if not types:
        kind, rows = b"embeddings_floats", b"[%s]" % b",".join(await write_rows(vectors, numbers))
    meta = msgspec.json.encode(CohereMeta(CohereInputTokens(tokens), CohereApiVersion(version)))
    shape = b'{"id":"%s","response_type":"%s","embeddings":%s,"texts":%s,"meta":%s}'
    return shape % (str(uuid.uuid4()).encode(), kind, rows, msgspec.json.encode(texts), meta)
