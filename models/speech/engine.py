"""The speech engine: faster-whisper, with windows of many recordings in one step."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from models import nvml
from models.batching.engine import BatchedEngine, Loaded, limits_of
from models.batching.worker import Batcher
from models.estimate import estimate
from models.lifecycle import LoadPhases
from models.messages import LoadResult, Segment, TranscribeRequest, TranscriptInfo, Usage
from models.process_control import is_out_of_memory
from models.speech.audio import Decoders, Recording
from models.speech.decoder import RATE
from models.speech.libraries import keep, one_thread_for_numpy, send_no_telemetry, widest_vectors
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
"""Approximate length of a step once the speed is known, so that new recordings soon get a turn."""
VAD_THRESHOLD = 0.5


def engine(bounds: Bounds = USUAL) -> "BatchedEngine[Transcriber]":
    return BatchedEngine("speech", partial(load, bounds))


async def load(
    bounds: Bounds, recipe: Recipe, path: Path, device: str, phases: LoadPhases, ending: AsyncExitStack
) -> "Loaded[Transcriber]":
    """See `models.batching.engine.Load`."""
    decoders = Decoders(bounds)
    ending.callback(decoders.close)
    flags = recipe.engine.flags
    with phases.phase("importing", 0.0, "faster-whisper"):
        await asyncio.to_thread(decoders.warm)
        await asyncio.to_thread(import_library)
        if device == "cpu":
            keep()
        await asyncio.to_thread(one_thread_for_numpy)
    before = psutil.Process().memory_info().rss
    with phases.phase("weights", 0.3):
        # Whisper's encoder has 1,500 positions, enough work for all cores even with small weights
        threads = int(str(flags.get("threads", cores())))
        model = await asyncio.to_thread(SpeechModel, recipe, path, device, threads)
    with phases.phase("warming", 0.7):
        limits = limits_of(recipe, STEP_SECONDS)
        # Whisper computes a window with all its padding, however much of it is sound
        limits.tokens, limits.least = max(limits.tokens, recipe.window.padded), recipe.window.padded
        most = limits.waiting
        limits.waiting *= 2  # a recording waits with its windows, and with one that is retried
        batcher = Batcher("speech", model.run, limits, examine=examination(model, device))
        batcher.start()
        ending.push_async_callback(asyncio.to_thread, batcher.close)
        silence = np.zeros(RATE, dtype=np.float32)
        voices = VoiceDetector(VAD_THRESHOLD, recipe.window.seconds * RATE)
        await asyncio.gather(asyncio.to_thread(model.warm), asyncio.to_thread(voices.add, silence, final=True))
    weights = read_weights(path).bytes
    guess = estimate_memory(recipe, path) if device != "cpu" else 0
    sleeper = SpeechSleeper(model, path, device, partial(measure_memory, device), guess, weights, before)
    result = LoadResult(
        resident_bytes=sleeper.resident_bytes(),
        weights_bytes=weights,
        host_bytes=sleeper.host_bytes(),
        asleep=sleeper.expected(),
        seconds=phases.seconds,
    )
    return Loaded(Transcriber(model, batcher, decoders, flags, most), batcher, sleeper, result)


class Transcriber:
    """Transcribes recordings with a loaded speech model, at most `most` at a time."""

    def __init__(
        self,
        model: SpeechModel,
        batcher: Batcher[WindowRequest, WindowResult],
        decoders: Decoders,
        flags: Mapping[str, object],
        most: int,
    ) -> None:
        self.model, self.batcher, self.decoders, self._most = model, batcher, decoders, most
        self._vad = bool(flags.get("vad", True))
        self._threshold = float(str(flags.get("vad_threshold", VAD_THRESHOLD)))
        self.running = 0

    async def transcribe(self, request: TranscribeRequest) -> AsyncGenerator[TranscriptInfo | Segment | Usage, None]:
        """Transcribe a recording. Closing the iterator ends the decoder and drops waiting windows."""
        self.model.check(request.language, request.task, words=request.word_timestamps)
        if self.running >= self._most:
            raise QueueFull(f"{self.running} recordings are being transcribed.", retry_after=5.0)
        vad = self._vad if request.vad is None else request.vad
        self.running += 1
        try:
            with await self._open(request) as recording:
                threshold = self._threshold if vad else None
                run = TranscriptionRun(self.model, self.batcher, request, recording, threshold)
                async with aclosing(run.events()) as events:
                    async for event in events:
                        yield event
        except RoundhouseError:
            raise
        except Exception as error:  # libraries may raise anything, which becomes one structured error
            raise EngineFailed(f"The transcription failed: {type(error).__name__}: {error}") from error
        finally:
            self.running -= 1

    async def _open(self, request: TranscribeRequest) -> Recording:
        """Open a recording in a thread, and close it if the request was cancelled meanwhile."""
        opening = asyncio.ensure_future(asyncio.to_thread(self.decoders.open, request.path, request.max_seconds))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(close_opened)
            raise


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
            if not is_out_of_memory(error):
                raise

    return examine


def measure_memory(device: str) -> int | None:
    """Return this process's bytes, on a GPU from the driver; None if unknown."""
    return psutil.Process().memory_info().rss if device == "cpu" else nvml.used_by(device, [os.getpid()])


def estimate_memory(recipe: Recipe, path: Path) -> int:
    """Estimate the bytes on a GPU after a load, without activations, which steps free."""
    needs = estimate(recipe, path, "cuda")
    return needs.total - needs.activations
