"""The speech engine: faster-whisper with windows of many recordings in one step."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from models import nvml
from models.batching.engine import BatchedEngine, limits_of
from models.batching.worker import Batcher
from models.estimate import estimate
from models.flags import flags_of
from models.messages import LoadResult, Segment, TranscribeRequest, TranscriptInfo, Usage
from models.protocol import Report
from models.speech.audio import RATE, Decoders, Recording
from models.speech.libraries import keep, one_thread_for_numpy, widest_vectors
from models.speech.model import SpeechModel, WindowRequest, WindowResult
from models.speech.sleep import SpeechSleeper
from models.speech.transcription import TranscriptionRun
from models.speech.windows import VoiceDetector
from registry.base.processor import cores
from registry.bounds import USUAL, Bounds
from registry.errors import EngineFailed, QueueFull, RoundhouseError
from registry.files.weights import read_weights
from registry.recipes.definition import Recipe

STEP_SECONDS = 2.0
"""A step is cut to about this long once the speed is known, so that a new recording soon gets its turn."""
VAD_THRESHOLD = 0.5


class WhisperEngine(BatchedEngine[WindowRequest, WindowResult]):
    """A loaded speech model. See `models.protocol` for each state."""

    def __init__(self, bounds: Bounds = USUAL) -> None:
        super().__init__("speech")
        self._model: SpeechModel | None = None
        self._decoders = Decoders(bounds)
        self._threshold: float | None = VAD_THRESHOLD
        self._running = 0
        self._most = 0

    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        async with self._lifecycle.loading(recipe, report, self.close) as phases:
            flags = flags_of(recipe)
            with phases.phase("importing", 0.0, "faster-whisper"):
                await asyncio.to_thread(self._decoders.warm)
                await asyncio.to_thread(import_library)
                if device == "cpu":
                    keep()
                await asyncio.to_thread(one_thread_for_numpy)
            before = psutil.Process().memory_info().rss
            with phases.phase("weights", 0.3):
                # Whisper's encoder has 1,500 positions: enough work for all cores, with small weights too
                threads = int(str(flags.get("threads", cores())))
                self._model = await asyncio.to_thread(SpeechModel, recipe, path, device, flags, threads)
            with phases.phase("warming", 0.7):
                limits = limits_of(recipe, STEP_SECONDS)
                # Whisper computes a window with all its padding, however much of it is sound
                limits.tokens, limits.least = max(limits.tokens, recipe.window.padded), recipe.window.padded
                self._most = limits.waiting
                limits.waiting *= 2  # a recording waits with its windows, and with one that is heard again
                self._batcher = Batcher("speech", self._model.run, limits)
                self._batcher.start()
                silence = np.zeros(RATE, dtype=np.float32)
                voices = VoiceDetector(VAD_THRESHOLD, recipe.window.seconds * RATE)
                await asyncio.gather(
                    asyncio.to_thread(self._model.warm), asyncio.to_thread(voices.add, silence, final=True)
                )
            if flags.get("vad", True) is False:
                self._threshold = None
            elif "vad_threshold" in flags:
                self._threshold = float(str(flags["vad_threshold"]))
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
        """Closing the iterator ends the decoder and drops windows that wait."""
        self._lifecycle.check()
        assert self._model is not None
        assert self._batcher is not None
        self._model.check(request.language, request.task, words=request.word_timestamps)
        if self._running >= self._most:
            raise QueueFull(f"{self._running} recordings are being transcribed.", retry_after=5.0)
        threshold = self._threshold
        if request.vad is not None:
            threshold = (threshold or VAD_THRESHOLD) if request.vad else None
        self._running += 1
        try:
            with await self._open(request) as recording:
                run = TranscriptionRun(self._model, self._batcher, request, recording, threshold)
                async with aclosing(run.events()) as events:
                    async for event in events:
                        yield event
        except RoundhouseError:
            raise
        except Exception as error:  # the border: whatever a library raises becomes one structured error
            raise EngineFailed(f"The transcription failed: {type(error).__name__}: {error}") from error
        finally:
            self._running -= 1

    async def _open(self, request: TranscribeRequest) -> Recording:
        """The thread goes on when the request is left: what it still opens is closed."""
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
    """Import what speech needs; all of it is needed early, so `hurried` is not used."""
    import_library()


def import_library() -> None:
    """faster_whisper, with its voice detection opened. Safe in any thread; no torch."""
    import logging

    widest_vectors()
    import ctranslate2
    from faster_whisper.vad import get_vad_model

    ctranslate2.set_log_level(logging.ERROR)  # it warns of weights that it converts for the device, which is meant
    get_vad_model()


def measure_memory(device: str) -> int | None:
    """Bytes of this process, on a GPU by the driver; None: it does not say."""
    return psutil.Process().memory_info().rss if device == "cpu" else nvml.used_by(device, [os.getpid()])


def estimate_memory(recipe: Recipe, path: Path) -> int:
    """Estimated bytes on a GPU after a load. Steps give back what they take."""
    needs = estimate(recipe, path, "cuda")
    return needs.total - needs.activations
