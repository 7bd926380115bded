"""Messages between gateway and engine: msgspec structs, safe to decode from a socket.

Requests go in, events come out. One request gives: `ResponseStart`? then any number of `Chunk`s (chat), or one result
(embed, rerank), or one `TranscriptInfo` and its `Segment`s (speech); always `ResponseEnd` last, or an error instead.
For a recording `ResponseEnd` comes before an error too.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages; `tag` writes the class name, so that unions decode."""


# --- adapters ------------------------------------------------------------------------------------------------------
class AdapterRef(Message, frozen=True):
    """A stored, normalised adapter. Engines know its digest, never its name."""

    digest: str
    """'sha256:' and 64 hex digits."""
    path: str
    """Absolute path of the immutable folder that holds adapter_config.json and adapter_model.safetensors."""
    rank: int
    bytes: int


# --- requests ------------------------------------------------------------------------------------------------------
THINK: Mapping[str, bool] = {"enable_thinking": True, "thinking": True}
"""Variables that let a chat template's model think: templates read one or the other."""


class HttpCall(Message, frozen=True):
    """A request for the chat engine's own HTTP application."""

    path: str
    body: bytes
    """The client's JSON with `model` set to `served`."""
    served: str
    """The name by which the engine knows the weights: the model's id, or the adapter's digest."""
    display_name: str
    """The name that the client used; the response's `model` shows it."""
    adapter: AdapterRef | None = None
    request_id: str = ""
    """Unique; the engine names its own request by it. Empty: the engine makes one."""
    team: str = ""
    """The team of the call, by which work takes turns."""
    priority: int = 0
    """Lower goes first, and is kept longer where the engine's memory is short."""
    tier: str = ""
    """`service_tier` of the answer; empty: it has none."""
    strict: bool = False
    """Whether hints that this model cannot follow are refused instead of left out."""
    trace: dict[str, str] = {}
    """Headers that name its place in a trace: `traceparent`, `tracestate`."""


class EmbedRequest(Message, frozen=True):
    """`inputs`: strings, or token id lists, in the client's order."""

    inputs: list[str | list[int]]
    prompt_name: str | None = None
    """Name of a prompt of the model ('query', 'document'); None: no prompt."""
    prompt_fallbacks: list[str] = []
    """Names that mean the same: the first that is not empty, where that one is, or is none of the model's."""
    dimensions: int | None = None
    truncate: bool = False
    """False: an input over the context length is an error that names its index."""
    normalize: bool = True


class RerankRequest(Message, frozen=True):
    query: str
    documents: list[str]
    truncate: bool = False
    """True: cut long documents at the context length. False: score chunks of them and take the best chunk."""
    max_query_tokens: int = 0
    """Cut the query to its first so many tokens; 0: no limit. Special tokens do not count."""
    max_document_tokens: int = 0
    """Cut each document to its first so many tokens, before it is split into chunks; 0: no limit."""
    max_chunks: int = 0
    """Score only the start of a document that would need more chunks than this; 0: no limit."""
    document_numbers: list[int] = []
    """The number of each document in the client's request, for errors; empty: as here."""


class TranscribeRequest(Message, frozen=True):
    """`path`: the gateway's temporary file, decoded in a process of its own."""

    path: str
    task: Literal["transcribe", "translate"] = "transcribe"
    language: str | None = None
    prompt: str | None = None
    hotwords: str | None = None
    temperature: list[float] = msgspec.field(default_factory=lambda: [0.0])
    """The next one is tried where a window is poorly transcribed."""
    word_timestamps: bool = False
    vad: bool | None = None
    """None: as the recipe's flags say."""
    max_seconds: float = 4 * 3600.0


# --- events --------------------------------------------------------------------------------------------------------
class ResponseStart(Message, frozen=True):
    """HTTP status and type of the chat engine's answer; sent before its first chunk."""

    status: int
    content_type: str
    warning: str = ""
    """Differences between the request and what was done; empty: none."""


class Chunk(Message, frozen=True):
    data: bytes


class EmbedResult(Message, frozen=True):
    """`vectors`: len(tokens) x dimensions little-endian float32, row by row."""

    vectors: bytes
    dimensions: int
    tokens: list[int]


class RerankResult(Message, frozen=True):
    """`logits`: one score per document, its best chunk's; sigmoid gives relevance."""

    logits: list[float]
    chunks: list[int]
    tokens: list[int]


class Word(Message, frozen=True):
    start: float
    end: float
    word: str
    probability: float


class Segment(Message, frozen=True):
    """Times in seconds from the start of the recording."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None = None


class TranscriptInfo(Message, frozen=True):
    language: str
    language_probability: float
    duration: float
    duration_after_vad: float


class Usage(Message, frozen=True):
    """Exact counts from the engine, for aborted requests too."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    audio_seconds: float = 0.0
    batch: int = 0
    """Number of requests or inputs in the engine step that answered this one (embed, rerank, speech)."""
    written_tokens: int = 0
    """Prompt tokens that a provider wrote into its cache and prices separately."""


class ResponseEnd(Message, frozen=True):
    usage: Usage


Event = ResponseStart | Chunk | EmbedResult | RerankResult | TranscriptInfo | Segment | ResponseEnd


# --- life cycle ----------------------------------------------------------------------------------------------------
class Progress(Message, frozen=True):
    """Progress of a load. `fraction`: of the whole load, or of the fetch before it."""

    phase: Literal[
        "fetching", "converting", "queued", "evicting", "waking", "starting", "importing", "weights", "warming",
        "ready", "falling asleep",
    ]  # fmt: skip
    fraction: float
    detail: str = ""


class MemoryFootprint(Message, frozen=True):
    """Bytes of an engine. On a CPU host memory counts as the device's."""

    device_bytes: int
    host_bytes: int = 0
    """Host memory of its processes, pinned copies included; 0 on a CPU."""


class LoadResult(Message, frozen=True):
    """Bytes that a finished load holds, and facts about the model."""

    resident_bytes: int
    """Bytes on the device."""
    weights_bytes: int
    host_bytes: int = 0
    """Host memory besides; 0 on a CPU."""
    asleep: MemoryFootprint | None = None
    """Expected memory asleep; None: it cannot sleep."""
    kv_cache_bytes: int = 0
    seconds: dict[str, float] = {}
    """Seconds per phase."""
    context_length: int = 0
