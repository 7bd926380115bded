"""Put a speech model to sleep.

CTranslate2 unloads its weights, and everything else stays. On CUDA the weights are moved to host memory. On a CPU they
are freed, and read again from the same file at the wake-up. That takes as long as a load in a pre-warmed slot (8 to
10 s for 800 MB on 2 busy cores), so by default models do not sleep on a CPU.
"""

import asyncio
import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from models.messages import MemoryFootprint
from models.speech.model import SpeechModel, WindowRequest
from registry.errors import EngineFailed

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
