"""The speech engine: faster-whisper, with windows of many recordings in one step.

For a sleep CTranslate2 unloads its weights, and everything else stays. On CUDA the weights are moved to host memory. On
a CPU they are freed, and read again from the same file at the wake-up. That takes as long as a load in a pre-warmed
slot (8 to 10 s for 800 MB on 2 busy cores), so by default models do not sleep on a CPU.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from models import nvml
from models.batching.engine import BatchedEngine, limits_of
from models.batching.worker import Batcher
from models.estimate import estimate
from models.flags import check_flags
from models.messages import LoadResult, MemoryFootprint, Segment, TranscribeRequest, TranscriptInfo, Usage
from models.protocol import Report
from models.speech.audio import RATE, Decoders, Recording
from models.speech.libraries import keep, one_thread_for_numpy, send_no_telemetry, widest_vectors
from models.speech.model import SpeechModel, WindowRequest, WindowResult
from models.speech.transcription import TranscriptionRun
from models.speech.windows import VoiceDetector
from registry.base.processor import cores
from registry.bounds import USUAL, Bounds
from registry.errors import EngineFailed, QueueFull, RoundhouseError
from registry.files.weights import read_weights
from registry.recipes.definition import Recipe

TOLERANCE = 1e-3
"""Largest difference in log probability of the same tokens before a sleep and after the wake-up."""
TOKENS = 8
"""Number of tokens that are compared."""
SET_UP = 64 << 20
"""Bytes of a model without weights on a CPU: tokenizer and CTranslate2's buffers."""

PATIENCE_SECONDS = 10.0
"""Longest time for which CTranslate2 may still count an answered request as running."""


def unload(replica: Any, to_cpu: bool) -> None:
    """Unload a model, and check that it is unloaded.

    CTranslate2 silently does nothing while it counts a batch as running, which it does for a moment after the batch's
    answer.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while replica.model_is_loaded:
        replica.unload_model(to_cpu=to_cpu)
        if replica.model_is_loaded:
            if time.monotonic() > deadline:
                raise EngineFailed(f"CTranslate2 did not unload the model within {PATIENCE_SECONDS:g} s")
            time.sleep(0.001)


class SpeechSleeper:
    """Puts a speech model to sleep and wakes it.

    Args:
        model: the loaded model, which nothing else may use during `down` and `up`.
        path: the folder of its weights.
        device: where it is while awake.
        measured: returns the process's bytes there, or None if unknown.
        guess: its bytes while awake, used if they are unknown.
        weights: bytes of its weights.
        before: the process's bytes before it loaded weights.
    """

    def __init__(
        self,
        model: SpeechModel,
        path: Path,
        device: str,
        measured: Callable[[], int | None],
        guess: int,
        weights: int,
        before: int,
    ) -> None:
        self._model, self._file, self._on_cpu = model, path / "model.bin", device == "cpu"
        self._measured, self._guess, self._weights, self._before = measured, guess, weights, before
        self._awake_bytes = self.resident_bytes()
        self._base = psutil.Process().memory_info().rss
        self._known: tuple[list[list[int]], list[float]] | None = None
        self._signature: tuple[int, int, int] | None = None

    def resident_bytes(self) -> int:
        """Return the bytes on its device while awake."""
        measured = self._measured()
        return self._guess if measured is None else measured

    def expected(self) -> MemoryFootprint:
        """Return the expected memory while asleep."""
        if self._on_cpu:
            return MemoryFootprint(device_bytes=min(self._before + SET_UP, self._awake_bytes))
        return MemoryFootprint(
            device_bytes=max(0, self._awake_bytes - self._weights), host_bytes=self._base + self._weights
        )

    def host_bytes(self) -> int:
        return 0 if self._on_cpu else psutil.Process().memory_info().rss

    async def down(self) -> MemoryFootprint:
        return await asyncio.to_thread(self._down)

    async def up(self) -> MemoryFootprint:
        return await asyncio.to_thread(self._up)

    def _down(self) -> MemoryFootprint:
        if self._known is None:
            self._known = self._hear()
        self._signature = self._stat()
        for whisper in self._copies():
            unload(whisper.model, to_cpu=not self._on_cpu)
        if self._on_cpu:
            with suppress(AttributeError):  # glibc only
                ctypes.CDLL(None).malloc_trim(0)
            return MemoryFootprint(device_bytes=psutil.Process().memory_info().rss)
        measured = self._measured()
        return MemoryFootprint(
            device_bytes=self.expected().device_bytes if measured is None else measured, host_bytes=self.host_bytes()
        )

    def _up(self) -> MemoryFootprint:
        if self._on_cpu and self._stat() != self._signature:
            raise EngineFailed(f"{self._file.name} is not the same file as when this model fell asleep")
        for whisper in self._copies():
            whisper.model.load_model()
        assert self._known is not None
        (tokens, scores), (known_tokens, known) = self._hear(), self._known
        if tokens != known_tokens or not np.allclose(scores, known, atol=TOLERANCE):
            raise EngineFailed("the model woke with other weights: its answer to a known input has changed")
        return MemoryFootprint(device_bytes=self.resident_bytes(), host_bytes=self.host_bytes())

    def _copies(self) -> list[Any]:
        return [whisper for whisper in (self._model.whisper, self._model._parallel) if whisper is not None]

    def _hear(self) -> tuple[list[list[int]], list[float]]:
        """Return first tokens and their log probability for fixed noise, per copy of the weights."""
        noise = np.random.default_rng(0).standard_normal(8_000).astype(np.float32) * 0.1
        features = self._model.features(noise)
        prompt = self._model._prompt(WindowRequest(features, 0.5), "en")
        results = []
        for whisper in self._copies():
            results += self._model._generate(whisper, whisper.encode(features), [prompt], 0.0, most=TOKENS)
        return [list(result.sequences_ids[0]) for result in results], [float(result.scores[0]) for result in results]

    def _stat(self) -> tuple[int, int, int]:
        status = self._file.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns


STEP_SECONDS = 2.0
"""Approximate length of a step once the speed is known, so that new recordings soon get a turn."""
VAD_THRESHOLD = 0.5
FULL = ("out of memory", "ALLOC_FAILED")
"""Words of CUDA and cuBLAS in errors for lack of memory."""


class WhisperEngine(BatchedEngine[WindowRequest, WindowResult]):
    """A loaded speech model. See `models.protocol` for each state."""

    def __init__(self, bounds: Bounds = USUAL) -> None:
        super().__init__("speech")
        self._model: SpeechModel | None = None
        self._decoders = Decoders(bounds)
        self._vad, self._threshold = True, VAD_THRESHOLD
        self._running = 0
        self._most = 0

    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        async with self._lifecycle.loading(recipe, report, self.close) as phases:
            check_flags(recipe)
            flags = recipe.engine.flags
            with phases.phase("importing", 0.0, "faster-whisper"):
                await asyncio.to_thread(self._decoders.warm)
                await asyncio.to_thread(import_library)
                if device == "cpu":
                    keep()
                await asyncio.to_thread(one_thread_for_numpy)
            before = psutil.Process().memory_info().rss
            with phases.phase("weights", 0.3):
                # Whisper's encoder has 1,500 positions, enough work for all cores even with small weights
                threads = int(str(flags.get("threads", cores())))
                self._model = await asyncio.to_thread(SpeechModel, recipe, path, device, threads)
            with phases.phase("warming", 0.7):
                limits = limits_of(recipe, STEP_SECONDS)
                # Whisper computes a window with all its padding, however much of it is sound
                limits.tokens, limits.least = max(limits.tokens, recipe.window.padded), recipe.window.padded
                self._most = limits.waiting
                limits.waiting *= 2  # a recording waits with its windows, and with one that is retried
                examine = examination(self._model, device)
                self._batcher = Batcher("speech", self._model.run, limits, examine=examine)
                self._batcher.start()
                silence = np.zeros(RATE, dtype=np.float32)
                voices = VoiceDetector(VAD_THRESHOLD, recipe.window.seconds * RATE)
                await asyncio.gather(
                    asyncio.to_thread(self._model.warm), asyncio.to_thread(voices.add, silence, final=True)
                )
            self._vad = bool(flags.get("vad", True))
            self._threshold = float(str(flags.get("vad_threshold", VAD_THRESHOLD)))
            weights = read_weights(path).bytes
        guess = estimate_memory(recipe, path) if device != "cpu" else 0
        sleeper = SpeechSleeper(self._model, path, device, partial(measure_memory, device), guess, weights, before)
        resident_bytes = sleeper.resident_bytes()
        self._sleeper = sleeper
        return LoadResult(
            resident_bytes=resident_bytes,
            weights_bytes=weights,
            host_bytes=sleeper.host_bytes(),
            asleep=sleeper.expected(),
            seconds=phases.seconds,
        )

    async def transcribe(self, request: TranscribeRequest) -> AsyncGenerator[TranscriptInfo | Segment | Usage, None]:
        """Transcribe a recording. Closing the iterator ends the decoder and drops waiting windows."""
        self._lifecycle.check()
        assert self._model is not None
        assert self._batcher is not None
        self._model.check(request.language, request.task, words=request.word_timestamps)
        if self._running >= self._most:
            raise QueueFull(f"{self._running} recordings are being transcribed.", retry_after=5.0)
        vad = self._vad if request.vad is None else request.vad
        self._running += 1
        try:
            with await self._open(request) as recording:
                threshold = self._threshold if vad else None
                run = TranscriptionRun(self._model, self._batcher, request, recording, threshold)
                async with aclosing(run.events()) as events:
                    async for event in events:
                        yield event
        except RoundhouseError:
            raise
        except Exception as error:  # libraries may raise anything, which becomes one structured error
            raise EngineFailed(f"The transcription failed: {type(error).__name__}: {error}") from error
        finally:
            self._running -= 1

    async def _open(self, request: TranscribeRequest) -> Recording:
        """Open a recording in a thread, and close it if the request was cancelled meanwhile."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._decoders.open, request.path, request.max_seconds))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(close_opened)
            raise

    def _let_go(self) -> None:
        self._model = None
        self._decoders.close()


def close_opened(opening: asyncio.Future[Recording]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def prewarm(hurried: Callable[[], bool]) -> None:
    """Import what speech needs. All of it is needed early, so `hurried` is not used."""
    import_library()


def import_library() -> None:
    """Import faster_whisper and open its voice detection. Thread-safe; imports no torch."""
    import logging

    widest_vectors()
    send_no_telemetry()
    import ctranslate2
    from faster_whisper.vad import get_vad_model

    ctranslate2.set_log_level(logging.ERROR)  # it warns about intended conversions of weights
    get_vad_model()


def examination(model: SpeechModel, device: str) -> Callable[[], None] | None:
    """Return a check that raises if this process has lost the GPU's context; None on a CPU.

    After that every step fails until the process ends. Lack of memory does not count.
    """
    if device == "cpu":
        return None

    def examine() -> None:
        try:
            model.warm()
        except RuntimeError as error:
            if not any(word in str(error) for word in FULL):
                raise

    return examine


def measure_memory(device: str) -> int | None:
    """Return this process's bytes, on a GPU from the driver; None if unknown."""
    return psutil.Process().memory_info().rss if device == "cpu" else nvml.used_by(device, [os.getpid()])


def estimate_memory(recipe: Recipe, path: Path) -> int:
    """Estimate the bytes on a GPU after a load, without activations, which steps free."""
    needs = estimate(recipe, path, "cuda")
    return needs.total - needs.activations
