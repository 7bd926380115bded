"""A loaded Whisper, which turns windows into segments with times and words, many per step."""

import json
import zlib
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.speech.libraries import keep_compiled, load_cublas
from models.speech.segments import TimedSegment, place_words, shorten_words, split
from registry.errors import BadRequest, EngineFailed
from registry.files.weights import read_weights
from registry.recipes.definition import Recipe, WindowSpec

SECOND_FRAMES = 100
"""Mel frames per second."""
NO_SPEECH, LOG_PROBABILITY, COMPRESSION = 0.6, -1.0, 2.4
"""Whisper's own bounds. A window that is probably silent and badly transcribed has no text; one that is badly
transcribed or repeats itself is transcribed again at the next temperature."""
LEAST_TEMPERATURE = 0.01
"""Least temperature of a sample, at which nearly every token is the likeliest. CTranslate2 divides by it: far smaller
ones overflow, and the model repeats one token up to the longest text."""
SMALL_WEIGHTS = 32 * 2**20
"""Size of weights in bytes up to which a second copy is worthwhile."""
MARKS = ("<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>", "<|notimestamps|>")
"""Tokens that transcription needs."""
PREPEND, APPEND = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the next or the previous word; Whisper's own lists."""


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """A window to transcribe. `features`: mel bins x 100 per second of padded window."""

    features: npt.NDArray[np.float32]
    seconds: float
    task: str = "transcribe"
    language: str | None = None
    """None to detect it."""
    previous: tuple[int, ...] = ()
    """Tokens of the prompt and hotwords."""
    temperature: float = 0.0
    words: bool = False


@dataclass(slots=True)
class WindowResult:
    """The transcription of one window."""

    segments: list[TimedSegment]
    language: str
    language_probability: float
    temperature: float
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    texts: list[str] = field(default_factory=list)
    """The text of each segment."""
    batch: int = 1
    """Windows that shared a step with this one."""

    @property
    def poor(self) -> bool:
        """Whether to try again at a higher temperature."""
        return not self.silent and (self.repeats or self.avg_logprob < LOG_PROBABILITY)

    @property
    def repeats(self) -> bool:
        """Whether the text repeats itself."""
        return self.compression_ratio > COMPRESSION

    @property
    def silent(self) -> bool:
        return self.no_speech_prob > NO_SPEECH and self.avg_logprob < LOG_PROBABILITY


def compute_type(dtype: str, kind: str, stored: Container[str], supported: Container[str]) -> str:
    """Return CTranslate2's compute type for a recipe's dtype. On a GPU auto means 16 bits, which are faster.

    Args:
        kind: CTranslate2's kind of device.
        stored: dtypes in the file, as named by safetensors.
        supported: compute types of the device.
    """
    if dtype != "auto":
        return dtype
    narrow = "int8_float16" if "I8" in stored else "default" if "BF16" in stored else "float16"
    return narrow if kind == "cuda" and narrow in supported else "default"


class SpeechModel:
    """Whisper in CTranslate2, opened by faster-whisper. Only one thread at a time may call `run`.

    `window`: length of the windows.
    """

    def __init__(self, recipe: Recipe, path: Path, device: str, threads: int) -> None:
        from ctranslate2 import get_supported_compute_types
        from faster_whisper import WhisperModel
        from faster_whisper.tokenizer import Tokenizer
        from faster_whisper.transcribe import get_suppressed_tokens

        kind, _, index = device.partition(":")
        if kind != "cpu":
            keep_compiled()
            load_cublas()
        if not (path / "tokenizer.json").is_file():
            raise EngineFailed(f"{path.name} has no tokenizer.json: copy it from the original model")
        weights = read_weights(path)
        supported = get_supported_compute_types(kind, int(index or 0))
        options = {
            "device": kind,
            "device_index": int(index or 0),
            "compute_type": compute_type(recipe.dtype, kind, weights.elements, supported),
        }
        self.whisper = WhisperModel(str(path), cpu_threads=threads, local_files_only=True, **options)
        self._parallel: Any = None
        """A second copy of the weights, with one thread per window; see `run`."""
        if kind == "cpu" and threads > 1 and (path / "model.bin").stat().st_size < SMALL_WEIGHTS:
            self._parallel = WhisperModel(
                str(path), cpu_threads=1, num_workers=threads, local_files_only=True, **options
            )  # fmt: skip
            self._pool = ThreadPoolExecutor(threads, "hear")
        self._fit_features()
        self.window: WindowSpec = recipe.window
        self._frames = recipe.window.padded * SECOND_FRAMES
        self.multilingual = bool(self.whisper.model.is_multilingual)
        if missing := [mark for mark in MARKS if self._id(mark) is None]:
            raise EngineFailed(
                f"tokenizer.json of {path.name} has no {missing[0]}: copy that of the Whisper that it was made from"
            )
        self._tokenizer = Tokenizer(self.whisper.hf_tokenizer, self.multilingual, task="transcribe", language="en")
        self._first_time: int = self._tokenizer.timestamp_begin
        self._end: int = self._tokenizer.eot
        flags = recipe.engine.flags
        self._beam = int(str(flags.get("beam_size", 5)))
        self._best_of = int(str(flags.get("best_of", 5)))
        self._extra = {
            name: flags[name] for name in ("repetition_penalty", "no_repeat_ngram_size") if name in flags
        }  # fmt: skip
        self._suppress = [token for token in get_suppressed_tokens(self._tokenizer, [-1]) if token is not None]
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        self._tells_language = bool(config.get("lang_ids"))
        self._times_words = times_words(config.get("alignment_heads"), weights.decoder_layers)

    def _fit_features(self) -> None:
        """Compute as many mel bins as the network has.

        Without a preprocessor_config.json (renamed in transformers 5) they would be 80; large-v3 needs 128.
        """
        from faster_whisper.feature_extractor import FeatureExtractor

        bins = int(self.whisper.model.n_mels)
        if self.whisper.feat_kwargs.get("feature_size", 80) != bins:
            self.whisper.feature_extractor = FeatureExtractor(**{**self.whisper.feat_kwargs, "feature_size": bins})

    def check(self, language: str | None, task: str, *, words: bool) -> None:
        """Raise BadRequest if this model does not support a request."""
        if words and not self._times_words:
            raise BadRequest(
                "This model cannot time words: alignment_heads in its config.json, which name parts of its decoder, "
                "are missing or another model's. Ask for 'segment', or add the model again from its original as "
                "safetensors.",
                param="timestamp_granularities",
                code="unsupported_value",
            )
        if task == "translate" and (not self.multilingual or self._id("<|translate|>") is None):
            raise BadRequest("This model knows only English, so it cannot translate.", param="model")
        if language is None:
            if self.multilingual and not self._tells_language:
                raise BadRequest(
                    "This model cannot detect the language: its config.json has no lang_ids. Send 'language'.",
                    param="language",
                )
            return
        if not self.multilingual and language != "en":
            raise BadRequest(f"This model knows only English, not '{language}'.", param="language")
        if self.multilingual and self._id(f"<|{language}|>") is None:
            raise BadRequest(f"This model does not know the language '{language}'.", param="language")

    def _id(self, token: str) -> int | None:
        token_id: int | None = self.whisper.hf_tokenizer.token_to_id(token)
        return token_id

    def previous(self, prompt: str | None, hotwords: str | None) -> tuple[int, ...]:
        """Return tokens to put before the window: hotwords, then the end of the prompt.

        Hotwords get half of the room, or more if the prompt is short.
        """
        room = self.whisper.max_length // 2 - 1
        expected, before = (
            self._text_tokens(" " + text.strip()) if text and text.strip() else [] for text in (hotwords, prompt)
        )
        expected = expected[: max(room // 2, room - len(before))]
        before = before[max(0, len(before) + len(expected) - room) :]
        return (self._tokenizer.sot_prev, *expected, *before) if expected or before else ()

    def _text_tokens(self, text: str) -> list[int]:
        """Return only text tokens, whatever clients write.

        A second <|startoftranscript|> would fail the whole step, and a token that only the tokenizer has is beyond the
        network's table.
        """
        return [token for token in self._tokenizer.encode(text) if token < self._end]

    def features(self, audio: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return features of at most a window of sound: mel bins x 100 per second of padded window."""
        from faster_whisper.audio import pad_or_trim

        mel = self.whisper.feature_extractor(audio)[..., :-1]
        padded: npt.NDArray[np.float32] = np.ascontiguousarray(pad_or_trim(mel, self._frames), dtype=np.float32)
        return padded

    def run(self, windows: Sequence[WindowRequest]) -> list[WindowResult]:
        """Transcribe windows, in one pass for all with equally long prompts and the same kind of answer.

        With a small model on a CPU, windows are instead spread over cores with one thread and pass each: two threads in
        one pass of such a model would wait for each other a third of the time (docs/design/notebook.md), and several
        windows in one pass take no less time but more memory.
        """
        outcomes: dict[int, WindowResult] = {}

        def kind(index: int) -> tuple[int, float, bool, str]:
            window = windows[index]
            return len(window.previous), window.temperature, window.words, window.task if window.words else ""

        for _, same in groupby(sorted(range(len(windows)), key=kind), key=kind):
            indices = list(same)
            some = [windows[index] for index in indices]
            if self._parallel is not None and len(indices) > 1:
                alone = [[window] for window in some]
                group_results = [
                    one for part in self._pool.map(partial(self._hear, self._parallel), alone) for one in part
                ]
            else:
                group_results = self._hear(self.whisper, some)
            for index, one in zip(indices, group_results, strict=True):
                outcomes[index] = replace(one, batch=len(indices))
        return [outcomes[index] for index in range(len(windows))]

    def _hear(self, whisper: Any, windows: Sequence[WindowRequest]) -> list[WindowResult]:
        encoded = whisper.encode(np.stack([window.features for window in windows]))
        languages = self._languages(whisper, windows, encoded)
        prompts = [self._prompt(window, detected[0]) for window, detected in zip(windows, languages, strict=True)]
        results = self._generate(whisper, encoded, prompts, windows[0].temperature)
        answers = zip(windows, languages, results, strict=True)
        outcomes = [self._result(window, *detected, result) for window, detected, result in answers]
        if not windows[0].words:
            return outcomes
        for language in {outcome.language for outcome in outcomes}:
            indices = [index for index, one in enumerate(outcomes) if one.language == language]
            some = [windows[index] for index in indices]
            part = encoded if len(some) == len(windows) else whisper.encode(np.stack([w.features for w in some]))
            self._align(whisper, part, language, some, [outcomes[index] for index in indices])
        return outcomes

    def warm(self) -> None:
        """Run features, encoder and decoder once, to warm up."""
        features = self.features(np.zeros(16_000, dtype=np.float32))
        for whisper in filter(None, (self.whisper, self._parallel)):
            prompt = self._prompt(WindowRequest(features, 1.0), "en")
            self._generate(whisper, whisper.encode(features), [prompt], 0.0, most=8)

    def _languages(self, whisper: Any, windows: Sequence[WindowRequest], encoded: Any) -> list[tuple[str, float]]:
        known = [(window.language or "en", 1.0) for window in windows]
        if not self.multilingual or all(window.language for window in windows):
            return known
        detected = whisper.model.detect_language(encoded)
        return [
            known[index] if window.language else (detected[index][0][0][2:-2], float(detected[index][0][1]))
            for index, window in enumerate(windows)
        ]

    def _prompt(self, window: WindowRequest, language: str) -> list[int]:
        prompt = [*window.previous, self._tokenizer.sot]
        if self.multilingual:
            marks = (self._id(f"<|{language}|>"), self._id(f"<|{window.task}|>"))
            prompt += [mark for mark in marks if mark is not None]
        return prompt

    def _generate(
        self, whisper: Any, encoded: Any, prompts: list[list[int]], temperature: float, most: int | None = None
    ) -> list[Any]:
        sampling: dict[str, Any] = {"beam_size": self._beam, "patience": 1}
        if temperature > 0:
            sampling = {"beam_size": 1, "num_hypotheses": self._best_of, "sampling_topk": 0}
            sampling["sampling_temperature"] = max(temperature, LEAST_TEMPERATURE)
        results: list[Any] = whisper.model.generate(
            encoded,
            prompts,
            max_length=most or whisper.max_length,
            suppress_blank=True,
            suppress_tokens=self._suppress,
            max_initial_timestamp_index=50,
            return_scores=True,
            return_no_speech_prob=True,
            **sampling,
            **self._extra,
        )
        return results

    def _result(self, window: WindowRequest, language: str, probability: float, result: Any) -> WindowResult:
        tokens = result.sequences_ids[0]
        segments = split(tokens, self._first_time, self._end, window.seconds)
        text = self._tokenizer.decode(tokens).strip().encode()
        return WindowResult(
            segments=segments,
            language=language,
            language_probability=probability,
            temperature=window.temperature,
            avg_logprob=float(result.scores[0]) * len(tokens) / (len(tokens) + 1),
            no_speech_prob=float(result.no_speech_prob),
            compression_ratio=len(text) / len(zlib.compress(text)) if text else 0.0,
            texts=[self._tokenizer.decode(segment.tokens) for segment in segments],
        )

    def _align(
        self,
        whisper: Any,
        encoded: Any,
        language: str,
        windows: Sequence[WindowRequest],
        outcomes: Sequence[WindowResult],
    ) -> None:
        """Time words by the decoder's attention, for all windows of a language at once."""
        from faster_whisper.tokenizer import Tokenizer
        from faster_whisper.transcribe import merge_punctuations

        tokens = [[token for segment in outcome.segments for token in segment.tokens] for outcome in outcomes]
        if not any(tokens):
            return
        # nothing can be aligned to a single frame, and the whole step would fail
        frames = [max(2, min(self._frames, round(window.seconds * SECOND_FRAMES))) for window in windows]
        tokenizer = Tokenizer(self.whisper.hf_tokenizer, self.multilingual, task=windows[0].task, language=language)
        alignments = whisper.find_alignment(tokenizer, tokens, encoded, frames)
        for one, window, aligned in zip(outcomes, windows, alignments, strict=True):
            typical = shorten_words(aligned)
            merge_punctuations(aligned, PREPEND, APPEND)
            place_words(one.segments, aligned, window.seconds, typical)


def times_words(heads: object, layers: int) -> bool:
    """Return whether `alignment_heads` fit a decoder with this many layers.

    Otherwise CTranslate2 would crash the process. A distilled model may still have those of the larger model.
    """
    return bool(heads) and isinstance(heads, list) and all(0 <= int(layer) < layers for layer, _ in heads)
