"""Messages between gateway and engine: msgspec structs, safe to decode from a socket.

Requests go in, events come out. A request yields a `ResponseStart` and any number of `Chunk`s (chat), or one result
(embed, rerank), or a `TranscriptInfo` and its `Segment`s (speech), and finally `ResponseEnd`, or an error instead.
For a recording `ResponseEnd` also comes before an error.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages. `tag` stores the class name, so that unions can be decoded."""


# --- adapters ------------------------------------------------------------------------------------------------------
class AdapterRef(Message, frozen=True):
    """A stored, normalised adapter. Engines know its digest, never its name."""

    digest: str
    """'sha256:' and 64 hex digits."""
    path: str
    """Absolute path of the immutable folder with adapter_config.json and adapter_model.safetensors."""
    rank: int
    bytes: int


# --- requests ------------------------------------------------------------------------------------------------------
THINK: Mapping[str, bool] = {"enable_thinking": True, "thinking": True}
"""Variables of chat templates that let the model think; a template reads one or the other."""


class HttpCall(Message, frozen=True):
    """A request for the chat engine's own HTTP application."""

    path: str
    body: bytes
    """The client's JSON with `model` set to `served`."""
    served: str
    """The engine's name for the weights: the model's id, or the adapter's digest."""
    display_name: str
    """The name that the client used, which is the response's `model`."""
    adapter: AdapterRef | None = None
    request_id: str = ""
    """Unique id, also used by the engine. If empty, the engine makes one."""
    team: str = ""
    """The team of the call, by which work takes turns."""
    priority: int = 0
    """Lower values go first, and are preempted later if the engine's memory is short."""
    tier: str = ""
    """`service_tier` of the answer; empty if it has none."""
    strict: bool = False
    """Whether hints that this model cannot follow are refused instead of ignored."""
    trace: dict[str, str] = {}
    """Trace headers: `traceparent`, `tracestate`."""


class EmbedRequest(Message, frozen=True):
    """`inputs`: strings or token id lists, in the client's order."""

    inputs: list[str | list[int]]
    prompt_name: str | None = None
    """Name of a prompt of the model ('query', 'document'); None for the model's default prompt, if any."""
    prompt_fallbacks: list[str] = []
    """Alternative prompts: the first non-empty one is used if `prompt_name` is empty or missing in the model."""
    dimensions: int | None = None
    truncate: bool | None = None
    """Cut inputs at the context length; None to follow the recipe. If not, a longer one is an error with its index."""
    normalize: bool = True


class RerankRequest(Message, frozen=True):
    query: str
    documents: list[str]
    truncate: bool = False
    """Cut long documents at the context length, instead of scoring their chunks and using the best one."""
    max_query_tokens: int = 0
    """Cut the query to this many tokens, without special tokens; 0 for no limit."""
    max_document_tokens: int = 0
    """Cut each document to this many tokens before it is split into chunks; 0 for no limit."""
    max_chunks: int = 0
    """Score at most this many chunks from the start of a document; 0 for no limit."""
    document_numbers: list[int] = []
    """Each document's number in the client's request, for errors; empty if the same as here."""


class TranscribeRequest(Message, frozen=True):
    """`path`: the gateway's temporary file, which is decoded in a separate process."""

    path: str
    task: Literal["transcribe", "translate"] = "transcribe"
    language: str | None = None
    prompt: str | None = None
    hotwords: str | None = None
    temperature: list[float] = msgspec.field(default_factory=lambda: [0.0])
    """The next value is tried if a window is transcribed poorly."""
    word_timestamps: bool = False
    segment_timestamps: bool = False
    """Whether the answer needs the times of segments, as subtitles do."""
    vad: bool | None = None
    """None to follow the recipe's flags."""
    max_seconds: float = 4 * 3600.0


# --- events --------------------------------------------------------------------------------------------------------
class ResponseStart(Message, frozen=True):
    """HTTP status and content type of the chat engine's answer, sent before its first chunk."""

    status: int
    content_type: str
    warning: str = ""
    """Differences between the request and what was done; empty if none."""


class Chunk(Message, frozen=True):
    data: bytes


class EmbedResult(Message, frozen=True):
    """`vectors`: len(tokens) x dimensions little-endian float32, row by row."""

    vectors: bytes
    dimensions: int
    tokens: list[int]
    warning: str = ""
    """Differences between the request and what was done; empty if none."""


class RerankResult(Message, frozen=True):
    """`logits`: the best chunk's score of each document; its sigmoid is the relevance."""

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
    """Exact counts from the engine, also for aborted requests."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    audio_seconds: float = 0.0
    batch: int = 0
    """Requests or inputs in the engine step that answered this one (embed, rerank, speech)."""
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
    """Bytes of an engine. On a CPU, host memory counts as device memory."""

    device_bytes: int
    host_bytes: int = 0
    """Host memory of its processes, including pinned copies; 0 on a CPU."""


class LoadResult(Message, frozen=True):
    """Memory after a load, and facts about the model."""

    resident_bytes: int
    """Bytes on the device."""
    weights_bytes: int
    host_bytes: int = 0
    """Additional host memory; 0 on a CPU."""
    asleep: MemoryFootprint | None = None
    """Expected memory while asleep; None if it cannot sleep."""
    kv_cache_bytes: int = 0
    seconds: dict[str, float] = {}
    """Seconds per phase."""
    context_length: int = 0
