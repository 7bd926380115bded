"""Embeddings, reranking and transcription in providers' formats.

Parts of a request that a provider's API cannot express are refused, with the name of the field.
"""

import base64
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from models.messages import (
    EmbedRequest,
    EmbedResult,
    Event,
    RerankRequest,
    RerankResult,
    Segment,
    TranscribeRequest,
    TranscriptInfo,
    Usage,
    Word,
)
from models.speech.length import seconds_of
from registry.base.json import NOT_JSON
from registry.base.lazy import LazyModule
from registry.errors import BadRequest
from registry.recipes.provider import Provider, ProviderModel, Surface
from routing.providers import usage_bounds
from routing.providers.connection import Body
from routing.providers.pass_through import BadAnswer
from routing.providers.plan import audio
from routing.providers.usage_bounds import UsageBounds

if TYPE_CHECKING:
    import aiohttp
    import numpy as np
else:
    aiohttp, np = LazyModule("aiohttp"), LazyModule("numpy")

ROUNDED = 1e-3
"""Largest deviation of a vector's length from 1 that rounding of its values explains."""
LARGEST = 36.0
"""Largest logit. Beyond it, a relevance is 0 or 1 in double precision."""
LONGEST = 1e9
"""Longest recording in seconds: 30 years. For numbers near the largest float, milliseconds cannot be counted, and the
reservation of the request would be held until the server ends."""

TaskAnswer = tuple[Sequence[Event], Usage, str | None]
"""Events of the answer, its usage, and the model that the provider says answered."""
R = TypeVar("R")
_FORMATS = re.compile(
    rb"(?P<wav>RIFF)|(?P<flac>fLaC)|(?P<ogg>OggS)|(?P<webm>\x1aE\xdf\xa3)|(?P<mp4>.{4}ftyp)"
    rb"|(?P<mp3>ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb])",
    re.DOTALL,
)
"""The first bytes of recordings. OpenAI goes by the file extension, and refuses names without one."""


def _unsupported(param: str, model: str) -> BadRequest:
    return BadRequest(
        f"'{param}' cannot be carried to '{model}', which runs at a provider. Leave it out.",
        param=param,
        code="unsupported_value",
    )


# --- embeddings ------------------------------------------------------------------------------------------------------
class _Vector(msgspec.Struct):
    embedding: str | list[float]
    index: int = 0
    """Omitted by some, who keep the order of the inputs."""


class _TextUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _Vectors(msgspec.Struct):
    data: list[_Vector]
    usage: _TextUsage | None = None
    model: str | None = None


def _embed_body(request: EmbedRequest, model: ProviderModel) -> bytes:
    """Return the body. Omits `truncate`, which only permits truncation: providers report inputs that are too long."""
    if not request.normalize:
        raise _unsupported("normalize", model.name)
    body: dict[str, Any] = {"model": model.name, "input": request.inputs, "encoding_format": "base64"}
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    if request.prompt_name is not None:
        # most providers call a passage a document
        body["input_type"] = "document" if "document" in request.prompt_fallbacks else request.prompt_name
    return msgspec.json.encode(body)


def _read_vectors(data: bytes, request: EmbedRequest) -> TaskAnswer:
    """Read vectors, and give each the length 1: some providers' shortened ones have another.

    All tokens are assigned to the first input, because providers sum them up. Raises BadAnswer.
    """
    try:
        answer = msgspec.json.decode(data, type=_Vectors, strict=False)
        rows = [_floats(item.embedding) for item in sorted(answer.data, key=lambda item: item.index)]
    except (ValueError, *NOT_JSON):
        raise BadAnswer("answered with invalid vectors") from None
    inputs = len(request.inputs)
    if len(rows) != inputs or len({len(row) for row in rows}) != 1 or not len(rows[0]):
        raise BadAnswer(f"answered {inputs} inputs with {len(rows)} vectors, or with ones of several lengths")
    vectors = np.stack(rows)
    if not np.isfinite(vectors).all():
        raise BadAnswer("answered with vectors whose values are not finite")
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    has_other = (lengths > 0) & (np.abs(lengths - 1) > ROUNDED)
    vectors = np.where(has_other, vectors / np.where(lengths > 0, lengths, 1), vectors).astype("<f4")
    tokens = max(0, answer.usage.prompt_tokens or answer.usage.total_tokens or 0) if answer.usage else 0
    result = EmbedResult(vectors.tobytes(), len(rows[0]), [tokens, *([0] * (inputs - 1))])
    return [result], Usage(prompt_tokens=tokens), answer.model


def _floats(value: str | list[float]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    raw = np.frombuffer(base64.b64decode(value, validate=True), "<f4") if isinstance(value, str) else value
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused
        return np.asarray(raw, dtype="<f4")


# --- reranking -------------------------------------------------------------------------------------------------------
class _Scored(msgspec.Struct):
    index: int
    relevance_score: float


class _TextScore(msgspec.Struct):
    """A score of Text Embeddings Inference, in a bare list."""

    index: int
    score: float


class _Billed(msgspec.Struct):
    input_tokens: int | None = None


class _Meta(msgspec.Struct):
    """Cohere's, in which SiliconFlow reports tokens."""

    tokens: _Billed | None = None


class _Ranked(msgspec.Struct):
    results: list[_Scored] = []
    data: list[_Scored] = []
    """The results, at Voyage."""
    usage: _TextUsage | None = None
    meta: _Meta | None = None
    model: str | None = None


def _rerank_body(request: RerankRequest, model: ProviderModel) -> bytes:
    for name in ("max_query_tokens", "max_document_tokens", "max_chunks", *(() if model.texts else ("truncate",))):
        if getattr(request, name):
            raise _unsupported(name, model.name)
    if model.texts:
        return msgspec.json.encode({"query": request.query, "texts": request.documents, "truncate": request.truncate})
    return msgspec.json.encode({"model": model.name, "query": request.query, "documents": request.documents})


def _read_ranking(data: bytes, request: RerankRequest) -> TaskAnswer:
    """Read a ranking. Scores from 0 to 1 are converted to logits, like those of engines. Raises BadAnswer.

    If any score is outside of 0 to 1, all are logits already, as from llama.cpp, and from TEI with `raw_scores`.
    """
    try:
        decoded = msgspec.json.decode(data, type=_Ranked | list[_TextScore], strict=False)
    except NOT_JSON:
        raise BadAnswer("answered with an invalid ranking") from None
    ranking = _Ranked([_Scored(one.index, one.score) for one in decoded]) if isinstance(decoded, list) else decoded
    scores = {item.index: item.relevance_score for item in ranking.results or ranking.data}
    documents = len(request.documents)
    if sorted(scores) != list(range(documents)) or not all(map(math.isfinite, scores.values())):
        raise BadAnswer("answered with a ranking that does not score each document")
    as_logit = logit if all(0 <= score <= 1 for score in scores.values()) else bounded
    tokens = (ranking.usage.total_tokens or ranking.usage.prompt_tokens or 0) if ranking.usage else 0
    if ranking.meta and ranking.meta.tokens:
        tokens = tokens or ranking.meta.tokens.input_tokens or 0
    tokens = max(0, tokens)
    logits = [as_logit(scores[index]) for index in range(documents)]
    result = RerankResult(logits, [1] * documents, [tokens, *([0] * (documents - 1))])
    return [result], Usage(prompt_tokens=tokens), ranking.model


def logit(relevance: float) -> float:
    """Return the inverse of sigmoid."""
    if relevance <= 0.0:
        return -LARGEST
    if relevance >= 1.0:
        return LARGEST
    return bounded(math.log(relevance) - math.log1p(-relevance))


def bounded(score: float) -> float:
    return max(-LARGEST, min(LARGEST, score))


# --- transcription ---------------------------------------------------------------------------------------------------
class _Word(msgspec.Struct):
    start: float
    end: float
    word: str


class _Segment(msgspec.Struct):
    """A segment. Servers send null for unknown fields, such as vLLM's `no_speech_prob`."""

    start: float = 0.0
    end: float = 0.0
    text: str = ""
    tokens: list[int] | None = None
    temperature: float | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None
    seek: int | None = None
    words: list[_Word] | None = None
    """Words, as whisper.cpp sends them."""


class _AudioUsage(msgspec.Struct):
    """Usage of a transcription, by time or by tokens."""

    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Transcript(msgspec.Struct):
    text: str
    language: str | None = None
    duration: float | str | None = None
    """A string in older vLLMs."""
    segments: list[_Segment] | None = None
    words: list[_Word] | None = None
    usage: _AudioUsage | None = None
    model: str | None = None


def _transcribe_form(request: TranscribeRequest, model: ProviderModel) -> "Callable[[], aiohttp.FormData]":
    """Return a factory of the form with the recording, which is read while it is sent."""
    if request.hotwords is not None:
        raise _unsupported("hotwords", model.name)
    if request.vad is not None:
        raise _unsupported("vad_filter", model.name)
    if request.word_timestamps and not model.segments:
        raise _unsupported("timestamp_granularities[]", model.name)
    if request.segment_timestamps and not model.segments:
        raise BadRequest(
            f"Subtitles need the times of segments, and '{model.name}' runs at a provider that gives none: send "
            "'response_format' 'json' or 'text'.",
            param="response_format",
            code="unsupported_value",
        )
    fields = {"model": model.name, "response_format": "verbose_json" if model.segments else "json"}
    if request.language is not None:
        fields["language"] = request.language
    if request.prompt is not None:
        fields["prompt"] = request.prompt
    if request.temperature[:1] != [0.0]:
        fields["temperature"] = str(request.temperature[0])

    def form() -> "aiohttp.FormData":
        form_data = aiohttp.FormData(fields)
        if request.word_timestamps:
            for kind in ("segment", "word"):
                form_data.add_field("timestamp_granularities[]", kind)
        recording = Path(request.path).open("rb")  # noqa: SIM115  # aiohttp closes it
        match = _FORMATS.match(recording.read(12))
        recording.seek(0)
        form_data.add_field("file", recording, filename=f"recording.{match.lastgroup}" if match else "recording")
        return form_data

    return form


def _read_transcript(data: bytes, request: TranscribeRequest) -> TaskAnswer:
    """Read a transcript. Defaults: one segment, and the length of the recording. Raises BadAnswer."""
    try:
        transcript = msgspec.json.decode(data, type=_Transcript, strict=False)
    except NOT_JSON:
        raise BadAnswer("answered with an invalid transcript") from None
    if request.segment_timestamps and transcript.text.strip() and not transcript.segments:
        raise BadAnswer("answered without the times of segments, which subtitles need")
    usage_reported = transcript.usage or _AudioUsage()
    ends = [segment.end for segment in transcript.segments or ()]
    seconds = max(0.0, _seconds(transcript.duration) or usage_reported.seconds or max(ends, default=0.0))
    if seconds > LONGEST:
        raise BadAnswer("answered with a transcript of an impossibly long recording")
    pieces = transcript.segments or ([_Segment(0.0, seconds, transcript.text)] if transcript.text else [])
    segments = [
        Segment(
            number, piece.seek or 0, piece.start, piece.end, piece.text, piece.tokens or [], piece.temperature or 0.0,
            piece.avg_logprob or 0.0, piece.compression_ratio or 0.0, piece.no_speech_prob or 0.0,
            words,
        )
        for number, (piece, words) in enumerate(zip(pieces, _words(pieces, transcript.words), strict=True))
    ]  # fmt: skip
    usage = Usage(
        prompt_tokens=max(0, usage_reported.input_tokens or 0),
        completion_tokens=max(0, usage_reported.output_tokens or 0),
        audio_seconds=seconds or min(request.max_seconds, seconds_of(Path(request.path))),
    )
    info = TranscriptInfo(transcript.language or "", 1.0, seconds, seconds)
    return [info, *segments], usage, transcript.model


def _seconds(value: float | str | None) -> float:
    try:
        seconds = float(value or 0.0)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def _words(pieces: Sequence[_Segment], words: Sequence[_Word] | None) -> list[list[Word] | None]:
    """Return each segment's words.

    A word between two segments belongs to the earlier one, and a word before all of them to the first, because times
    of words and of segments do not match exactly.
    """
    if words is None:
        return [None if piece.words is None else [_word(one) for one in piece.words] for piece in pieces]
    starts = [piece.start for piece in pieces]
    by_segment: list[list[Word]] = [[] for _ in pieces]
    for one in words if pieces else ():
        by_segment[max(0, bisect_right(starts, one.start) - 1)].append(_word(one))
    return [*by_segment]


def _word(one: _Word) -> Word:
    return Word(one.start, one.end, one.word, 1.0)


# --- the table -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ProviderTask(Generic[R]):
    """A task in providers' formats."""

    surface: Callable[[Provider, R], Surface]
    body: Callable[[R, ProviderModel], Body]
    """Returns the body to send. Raises BadRequest for what the provider's API cannot express."""
    read: Callable[[bytes, R], TaskAnswer]
    """Reads the answer. Raises BadAnswer."""
    most_usage: Callable[[R, bytes], UsageBounds]
    """Returns bounds of the usage from the request and the sent body, which is empty for a form."""


PROVIDER_TASKS: Mapping[type, ProviderTask[Any]] = {
    EmbedRequest: ProviderTask(lambda *_: Surface.EMBEDDINGS, _embed_body, _read_vectors, usage_bounds.of_texts),
    RerankRequest: ProviderTask(lambda *_: Surface.RERANK, _rerank_body, _read_ranking, usage_bounds.of_ranking),
    TranscribeRequest: ProviderTask(
        lambda provider, request: audio(provider, request.task),
        _transcribe_form,
        _read_transcript,
        usage_bounds.of_recording,
    ),
}
