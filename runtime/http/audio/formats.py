"""A transcript in each of OpenAI's response formats."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from models.messages import Segment, TranscriptInfo, Usage
from runtime.http.audio import fields
from runtime.http.audio.fields import FORMATS, GRANULARITIES, Format, Task, TranscriptionOptions
from runtime.http.schema import COUNT, NUMBER, STRING, Json, array, component, either, one_of, record

_FLAG = one_of("true", "false", "1", "0")
_DURATION = record({"type": {"const": "duration"}, "seconds": COUNT})
_TOKENS = record(
    {"type": {"const": "tokens"}, "input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT}
)  # fmt: skip
_USAGE = either(_DURATION, _TOKENS)
_WORD = record({"word": STRING, "start": NUMBER, "end": NUMBER})
_SEGMENT = record(
    {
        "id": COUNT, "seek": COUNT, "start": NUMBER, "end": NUMBER, "text": STRING, "tokens": array(COUNT),
        "temperature": NUMBER, "avg_logprob": NUMBER, "compression_ratio": NUMBER, "no_speech_prob": NUMBER,
    }
)  # fmt: skip

_FORM: dict[str, Json] = {
    "model": {**STRING, "description": "Before `file`, an unknown name is answered without waiting for the upload."},
    "file": {
        "type": "string",
        "contentMediaType": "application/octet-stream",
        "description": "A recording: wav, mp3, flac, ogg, m4a or webm.",
    },
    "language": {**STRING, "description": "ISO 639-1 code or English name; left out: detected."},
    "prompt": {**STRING, "description": "Text that came before, or words in the desired spelling."},
    "response_format": {**one_of(*FORMATS), "default": "json"},
    "temperature": {"type": "number", "minimum": 0, "maximum": 1, "default": 0},
    "timestamp_granularities[]": array(one_of(*GRANULARITIES), description="Only with verbose_json."),
    "stream": {**_FLAG, "description": "Events transcript.text.delta and transcript.text.done; with json or text."},
    "hotwords": {**STRING, "description": "Words to expect."},
    "keywords[]": array(STRING, description="Words to expect, one per entry."),
    "vad_filter": {**_FLAG, "description": "Leave out what is not speech; default as the recipe says."},
    "chunking_strategy": one_of("auto", "server_vad", '{"type": "server_vad"}'),
    "chunking_strategy[type]": {**one_of("server_vad"), "description": "As OpenAI's SDK writes the object."},
    "user": STRING,
    "kwargs": {**one_of("{}"), "description": "As Xinference's client sends it."},
}


FORM = component("AudioForm", record(_FORM, ["model", "file"], open_=False))
TRANSCRIPT = component(
    "Transcript",
    either(
        record({"text": STRING, "usage": _USAGE}, ["text"], open_=False),
        record(
            {
                "task": one_of("transcribe", "translate"),
                "language": STRING,
                "duration": NUMBER,
                "text": STRING,
                "segments": array(_SEGMENT),
                "words": array(_WORD),
                "usage": _USAGE,
            },
            ["task", "language", "duration", "text"],
        ),
    ),
)


MEDIA_TYPES: dict[Format, str] = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}

UNSPACED = frozenset({"zh", "yue", "ja", "th", "lo", "km", "my", "bo"})
CLOSING = frozenset(".,;:!?%)]}…。，、！？")


def usage(info: TranscriptInfo, used: Usage) -> dict[str, Any]:
    """OpenAI's usage: seconds, rounded up, or else a provider's tokens."""
    if info.duration:
        return {"usage": {"type": "duration", "seconds": math.ceil(info.duration)}}
    tokens = {"input_tokens": used.prompt_tokens, "output_tokens": used.completion_tokens}
    total = sum(tokens.values())
    return {"usage": {"type": "tokens", **tokens, "total_tokens": total}} if total else {}


def transcript_language(task: Task, info: TranscriptInfo) -> str:
    """The code of the transcript's language."""
    return "en" if task == "translate" else fields.language_code(info.language)


def delta(so_far: str, segment: Segment, language: str) -> str:
    """A segment's part of the text, with a space before it if needed.

    There is no space at the beginning, before closing punctuation, or in languages written without spaces, unless the
    segment itself begins with one.
    """
    words = segment.text.strip()
    if not words or not so_far:
        return words
    spaced = segment.text[0].isspace() or (language not in UNSPACED and words[0] not in CLOSING)
    return f" {words}" if spaced else words


def text(segments: Sequence[Segment], language: str) -> str:
    """All segments in one line: the concatenated deltas."""
    so_far = ""
    for segment in segments:
        so_far += delta(so_far, segment, language)
    return so_far


def render(options: TranscriptionOptions, info: TranscriptInfo, segments: Sequence[Segment], used: Usage) -> bytes:
    """The body in the requested format."""
    language = transcript_language(options.task, info)
    match options.format:
        case "text":
            return f"{text(segments, language)}\n".encode()
        case "srt":
            return _cues(segments, ",", lambda line: line.replace("-->", "->"), numbered=True).encode()
        case "vtt":
            return ("WEBVTT\n\n" + _cues(segments, ".", _escaped, numbered=False)).encode()
        case "verbose_json":
            return msgspec.json.encode({**_verbose(options, info, segments), **usage(info, used)})
        case "json":
            return msgspec.json.encode({"text": text(segments, language), **usage(info, used)})


def _verbose(options: TranscriptionOptions, info: TranscriptInfo, segments: Sequence[Segment]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "task": options.task,
        "language": "english" if options.task == "translate" else fields.name(fields.language_code(info.language)),
        "duration": info.duration,
        "text": text(segments, transcript_language(options.task, info)),
    }
    if "word" in options.granularities:
        body["words"] = [
            {"word": word.word.strip(), "start": word.start, "end": word.end}
            for segment in segments
            for word in segment.words or ()
        ]
    if "segment" in options.granularities:
        body["segments"] = [_segment(number, segment) for number, segment in enumerate(segments)]
    return body


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": number,
        "seek": segment.seek,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }


def _cues(segments: Sequence[Segment], point: str, clean: Callable[[str], str], *, numbered: bool) -> str:
    """Subtitle cues of segments with text. `point` separates seconds and milliseconds."""
    cues: list[str] = []
    for segment in segments:
        line = clean(" ".join(segment.text.split()))
        if line:
            number = f"{len(cues) + 1}\n" if numbered else ""
            cues.append(f"{number}{clock(segment.start, point)} --> {clock(segment.end, point)}\n{line}\n\n")
    return "".join(cues)


def _escaped(line: str) -> str:
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def clock(seconds: float, point: str) -> str:
    """Format as HH:MM:SS and milliseconds. Hours may exceed 99."""
    total = max(0, round(seconds * 1000))
    minutes, milliseconds = divmod(total, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{milliseconds // 1000:02d}{point}{milliseconds % 1000:03d}"
