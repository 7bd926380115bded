"""Sleep of a speech model: CTranslate2 parks its weights, the rest stays.

On CUDA the weights go to host memory and come back from there. On a CPU they are freed, and read again from their file
at the wake, which must be the same file as before: that takes as long as a load in a pre-warmed slot (800 MB of weights
on 2 busy cores: both 8 to 10 s), so by default a model does not sleep there.
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
"""Largest difference of the log probability of the same tokens before a sleep and after the wake."""
TOKENS = 8
"""Tokens that are compared."""
SET_UP = 64 << 20
"""Bytes that a model without its weights takes on a CPU: tokenizer, buffers of CTranslate2."""

PATIENCE_SECONDS = 10.0
"""How long CTranslate2 may go on with what it has answered already."""


def unload(replica: Any, to_cpu: bool) -> None:
    """Unload a model, and see that it is.

    CTranslate2 does nothing, and says nothing, while it counts a batch as running, which it does for a moment after the
    batch's answer was given.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while replica.model_is_loaded:
        replica.unload_model(to_cpu=to_cpu)
        if replica.model_is_loaded:
            if time.monotonic() > deadline:
                raise EngineFailed(f"CTranslate2 did not unload the model within {PATIENCE_SECONDS:g} s")
            time.sleep(0.001)


class SpeechSleeper:
    """Args:
    model: the loaded model; nothing else uses it during `down` and `up`.
    path: the folder of its weights.
    device: where it lives awake.
    measured: bytes that the process holds there; None: nobody tells.
    guess: the same, awake, where nobody tells.
    weights: bytes of its weights.
    before: bytes that the process held before it had weights.
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
        """Bytes where it lives, now that it is awake."""
        measured = self._measured()
        return self._guess if measured is None else measured

    def expected(self) -> MemoryFootprint:
        """Expected memory asleep."""
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
            with suppress(AttributeError):  # glibc only: else it keeps what was freed
                ctypes.CDLL(None).malloc_trim(0)
            return MemoryFootprint(device_bytes=psutil.Process().memory_info().rss)
        measured = self._measured()
        return MemoryFootprint(
            device_bytes=self.expected().device_bytes if measured is None else measured, host_bytes=self.host_bytes()
        )

    def _up(self) -> MemoryFootprint:
        if self._on_cpu and self._stat() != self._signature:
            raise EngineFailed(f"{self._file.name} is another file than when this model fell asleep")
        for whisper in self._copies():
            whisper.model.load_model()
        assert self._known is not None
        (tokens, scores), (known_tokens, known) = self._hear(), self._known
        if tokens != known_tokens or not np.allclose(scores, known, atol=TOLERANCE):
            raise EngineFailed("the model woke with other weights: it does not hear what it heard before")
        return MemoryFootprint(device_bytes=self.resident_bytes(), host_bytes=self.host_bytes())

    def _copies(self) -> list[Any]:
        return [whisper for whisper in (self._model.whisper, self._model._parallel) if whisper is not None]

    def _hear(self) -> tuple[list[list[int]], list[float]]:
        """First tokens and their likelihood, per copy of the weights, for the same noise."""
        noise = np.random.default_rng(0).standard_normal(8_000).astype(np.float32) * 0.1
        features = self._model.features(noise)
        prompt = self._model._prompt(WindowRequest(features, 0.5), "en")
        results = []
        for whisper in self._copies():
            results += self._model._generate(whisper, whisper.encode(features), [prompt], 0.0, most=TOKENS)
        return [list(one.sequences_ids[0]) for one in results], [float(one.scores[0]) for one in results]

    def _stat(self) -> tuple[int, int, int]:
        status = self._file.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
