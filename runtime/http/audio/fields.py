"""Form fields of the audio endpoints: those of OpenAI and of faster-whisper servers."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from models.messages import TranscribeRequest
from registry.base.json import NOT_JSON
from registry.errors import BadRequest
from runtime.http.bodies import refuse_fields

_TABLE = """
af afrikaans|am amharic|ar arabic|as assamese|az azerbaijani|ba bashkir|be belarusian|bg bulgarian|bn bengali|bo tibetan
br breton|bs bosnian|ca catalan|cs czech|cy welsh|da danish|de german|el greek|en english|es spanish|et estonian
eu basque|fa persian|fi finnish|fo faroese|fr french|gl galician|gu gujarati|ha hausa|haw hawaiian|he hebrew|hi hindi
hr croatian|ht haitian creole|hu hungarian|hy armenian|id indonesian|is icelandic|it italian|ja japanese|jw javanese
ka georgian|kk kazakh|km khmer|kn kannada|ko korean|la latin|lb luxembourgish|ln lingala|lo lao|lt lithuanian
lv latvian|mg malagasy|mi maori|mk macedonian|ml malayalam|mn mongolian|mr marathi|ms malay|mt maltese|my myanmar
ne nepali|nl dutch|nn nynorsk|no norwegian|oc occitan|pa punjabi|pl polish|ps pashto|pt portuguese|ro romanian
ru russian|sa sanskrit|sd sindhi|si sinhala|sk slovak|sl slovenian|sn shona|so somali|sq albanian|sr serbian
su sundanese|sv swedish|sw swahili|ta tamil|te telugu|tg tajik|th thai|tk turkmen|tl tagalog|tr turkish|tt tatar
uk ukrainian|ur urdu|uz uzbek|vi vietnamese|yi yiddish|yo yoruba|yue cantonese|zh chinese
"""

NAMES: dict[str, str] = dict(entry.split(" ", 1) for entry in _TABLE.strip().replace("\n", "|").split("|"))
"""Names of languages, by code."""
_OTHERS = """
jv jw|nb no|fil tl|cmn zh|iw he|in id|ji yi|mandarin zh|castilian es|valencian ca|flemish nl|burmese my|haitian ht
letzeburgesch lb|pushto ps|panjabi pa|moldavian ro|moldovan ro|sinhalese si
"""
"""Codes that phones and browsers send for a language, and Whisper's other names."""
_CODES = {name: code for code, name in NAMES.items()} | dict(
    entry.split() for entry in _OTHERS.strip().replace("\n", "|").split("|")
)


_REGION = re.compile(r"([a-z]{2,3})(?:[-_][a-z0-9]{2,8})+")


def name(code: str) -> str:
    """The name of a language: 'english' for 'en'. Unknown codes stay unchanged."""
    return NAMES.get(code, code)


def language_code(language: str) -> str:
    """The code for a language's code or name from an engine. Others stay unchanged."""
    lower = language.lower()
    return _CODES.get(lower, lower)


def code(given: str) -> str | None:
    """The code for a client's language: a code, perhaps with a region (en-US), or an English name.

    None if the language is to be detected. Raises BadRequest.
    """
    language = given.strip().lower()
    if language in ("", "auto"):  # "auto" is whisper.cpp's
        return None
    if (region := _REGION.fullmatch(language)) and (region[1] in NAMES or region[1] in _CODES):
        language = region[1]
    if language in NAMES:
        return language
    if language in _CODES:
        return _CODES[language]
    raise BadRequest(
        f"'{given[:32]}' is not a language of Whisper. Send an ISO 639-1 code such as 'en', or leave 'language' out.",
        param="language",
    )


Task = Literal["transcribe", "translate"]
Format = Literal["json", "text", "srt", "vtt", "verbose_json"]
FORMATS: tuple[Format, ...] = ("json", "text", "srt", "vtt", "verbose_json")
Granularity = Literal["word", "segment"]
GRANULARITIES: tuple[Granularity, ...] = ("word", "segment")

SINGLE = (
    "model", "language", "prompt", "response_format", "temperature", "stream", "hotwords", "vad_filter",
    "chunking_strategy", "user", "kwargs",
)  # fmt: skip
LISTS = ("timestamp_granularities", "include", "keywords", "languages")
"""Fields with several values, whose names may end with '[]' as in OpenAI's clients."""

CHANGING = frozenset((
    "beam_size", "best_of", "clip_timestamps", "compression_ratio_threshold", "condition_on_previous_text",
    "diarization", "diarize", "frequency_penalty", "initial_prompt", "known_speaker_names", "lang",
    "length_penalty", "log_prob_threshold", "logprob_threshold", "max_speakers", "min_p", "min_speakers",
    "no_repeat_ngram_size", "no_speech_threshold", "num_speakers", "offset_t", "patience", "presence_penalty",
    "repetition_penalty", "suppress_tokens", "task", "to_language", "top_k", "top_p", "translate",
    "word_timestamps",
))  # fmt: skip
"""Fields of other servers that change a transcript."""
INSTEAD: Mapping[str, str] = {
    "initial_prompt": "send 'prompt'", "lang": "send 'language'",
    "task": "send the recording to /v1/audio/transcriptions or /v1/audio/translations",
    "translate": "send the recording to /v1/audio/translations",
    "word_timestamps": "send 'timestamp_granularities[]' with 'response_format' 'verbose_json'",
}  # fmt: skip
"""Advice on fields that have another name here."""
NO, YES = ("false", "0"), ("true", "1")
DEFAULTS: Mapping[str, Sequence[str]] = dict.fromkeys(("diarization", "diarize", "offset_t", "word_timestamps"), NO)
"""Values with which those fields have no effect. For `task` and `translate` it is the path's own task."""

TEMPERATURES = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
"""Whisper's temperatures if none or 0 is sent, as at OpenAI. A poor transcript is retried with the next one."""

LONGEST_STRATEGY = 1000
"""Most characters of a `chunking_strategy`. Parsing 256 KiB of 1e308 would block all streams for a second."""

V = TypeVar("V", bound=str)


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """The client's validated options."""

    task: Task
    format: Format
    granularities: tuple[Granularity, ...]
    stream: bool
    language: str | None
    prompt: str | None
    hotwords: str | None
    temperature: float | None
    vad: bool | None
    left_out: Sequence[str]

    def request(self, path: str, max_seconds: float) -> TranscribeRequest:
        """The engine's request for the recording at `path`."""
        return TranscribeRequest(
            path=path,
            task=self.task,
            language=self.language,
            prompt=self.prompt,
            hotwords=self.hotwords,
            temperature=[self.temperature] if self.temperature else TEMPERATURES,
            word_timestamps="word" in self.granularities,
            segment_timestamps=self.format in ("srt", "vtt"),
            vad=self.vad,
            max_seconds=max_seconds,
        )


def parse(fields: dict[str, list[str]], task: Task) -> TranscriptionOptions:
    """Parse the form. Unknown fields are ignored unless they would change the text. Raises BadRequest."""
    form = _Form(fields, {**DEFAULTS, "task": (task,), "translate": YES if task == "translate" else NO})
    format_ = form.one_of("response_format", FORMATS) or "json"
    granularities = form.granularities()
    stream = form.flag("stream") or False
    if "word" in granularities and format_ != "verbose_json":  # "segment" is speaches' default in every format
        raise BadRequest(
            "'timestamp_granularities' needs 'response_format' to be 'verbose_json'.", param="timestamp_granularities"
        )
    if stream and format_ not in ("json", "text"):
        raise BadRequest(
            f"A stream carries text only: 'stream' does not go with 'response_format' '{format_}'.", param="stream"
        )
    if form.one("kwargs") not in (None, "", "{}"):  # Xinference's client always sends it
        raise BadRequest("Send what is in 'kwargs' as fields of the form.", param="kwargs", code="unsupported_value")
    if form.list("include"):
        raise BadRequest(
            "Token log probabilities are not available from this engine. Leave 'include' out.",
            param="include",
            code="unsupported_value",
        )
    return TranscriptionOptions(
        task=task,
        format=format_,
        granularities=granularities or (("segment",) if format_ == "verbose_json" else ()),
        stream=stream,
        language=form.language(),
        prompt=form.one("prompt") or None,
        hotwords=form.hotwords(),
        temperature=form.temperature(),
        vad=form.vad(),
        left_out=form.left_out,
    )


def _gather_objects(fields: dict[str, list[str]]) -> dict[str, list[str]]:
    """Combine fields such as `chunking_strategy[type]`, which OpenAI's SDK sends for objects."""
    name = "chunking_strategy"
    parts = {key: values for key, values in fields.items() if key.startswith(f"{name}[") and key.endswith("]")}
    if not parts:
        return fields
    whole = {key[len(name) + 1 : -1]: values[0] if len(values) == 1 else values for key, values in parts.items()}
    others = {key: values for key, values in fields.items() if key not in parts}
    return {**others, name: [*others.get(name, ()), msgspec.json.encode(whole).decode()]}


class _Form:
    def __init__(self, fields: dict[str, list[str]], defaults: Mapping[str, Sequence[str]]) -> None:
        self._fields: dict[str, list[str]] = {}
        self.left_out: list[str] = []
        for name, values in _gather_objects(fields).items():
            bare = name.removesuffix("[]")
            if bare not in LISTS and bare not in SINGLE:
                if not all(value.lower() in defaults.get(bare, ()) for value in values):
                    self.left_out += refuse_fields([bare], CHANGING, INSTEAD)
                continue
            known = self._fields.setdefault(bare, [])
            known += values
            if bare in SINGLE and len(known) > 1:
                raise BadRequest(f"'{bare}' was sent {len(known)} times.", param=bare)

    def one(self, name: str) -> str | None:
        return next(iter(self._fields.get(name, [])), None)

    def list(self, name: str) -> list[str]:
        return [value for value in self._fields.get(name, []) if value]

    def one_of(self, name: str, allowed: tuple[V, ...]) -> V | None:
        value = self.one(name)
        return _one_of(value, name, allowed) if value else None

    def flag(self, name: str) -> bool | None:
        value = (self.one(name) or "").lower()
        if value in ("", "none", "null"):
            return None
        if value not in ("true", "false", "1", "0"):
            raise BadRequest(f"'{name}' must be true or false.", param=name)
        return value in ("true", "1")

    def granularities(self) -> tuple[Granularity, ...]:
        name = "timestamp_granularities"
        return tuple(dict.fromkeys(_one_of(value, name, GRANULARITIES) for value in self.list(name)))

    def language(self) -> str | None:
        several = self.list("languages")
        if len(several) > 1:
            raise BadRequest(
                "One recording is transcribed in one language. Send it in 'language', or leave it out to detect it.",
                param="languages",
                code="unsupported_value",
            )
        return code(self.one("language") or (several[0] if several else ""))

    def hotwords(self) -> str | None:
        words = [self.one("hotwords") or "", *self.list("keywords")]
        return ", ".join(word for word in words if word) or None

    def temperature(self) -> float | None:
        value = self.one("temperature")
        if not value:
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number <= 1:
            raise BadRequest("'temperature' must be a number between 0 and 1.", param="temperature")
        return number

    def vad(self) -> bool | None:
        """`vad_filter`, or OpenAI's `chunking_strategy`: 'auto' or plain server_vad."""
        vad_filter, strategy = self.flag("vad_filter"), self.one("chunking_strategy")
        if not strategy:
            return vad_filter
        plain = strategy == "auto"
        if not plain and len(strategy) <= LONGEST_STRATEGY:
            try:
                plain = msgspec.json.decode(strategy) == {"type": "server_vad"}
            except NOT_JSON:
                plain = strategy == "server_vad"
        if not plain:
            raise BadRequest(
                "'chunking_strategy' may be 'auto' or {\"type\": \"server_vad\"}; its thresholds are the recipe's.",
                param="chunking_strategy",
                code="unsupported_value",
            )
        if vad_filter is False:
            raise BadRequest(
                "'chunking_strategy' asks for voice detection, and 'vad_filter' for none: leave one out.",
                param="vad_filter",
            )
        return True


def _one_of(value: str, name: str, allowed: tuple[V, ...]) -> V:
    for choice in allowed:
        if value == choice:
            return choice
    raise BadRequest(f"'{name}' must be one of {', '.join(allowed)}.", param=name)
