"""The form and the transcripts of the audio endpoints as JSON Schema."""

from runtime.http.audio.fields import FORMATS, GRANULARITIES
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
        record({"text": STRING, "usage": _USAGE}, open_=False),
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
