"""How a speech model sleeps: CTranslate2 parks its weights. Tokenizer, voice detection and decoders stay.

On CUDA the weights go to host memory and come back from there. On a CPU they are freed, and read again from their file
at the wake, which must be the same file as before.
"""

import asyncio
import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from models.messages import Held
from models.transcribe_model import Heard, Listen, SpeechModel
from registry.errors import EngineFailed

SAME = 1e-3
"""Largest difference of the mean log probability of the same words before a sleep and after the wake."""
OTHER = 1 << 28
"""Bytes that stay on a GPU asleep, besides the context: CTranslate2's libraries."""


class SpeechSleeper:
    """Args:
    model: the loaded model; nothing else uses it during `down` and `up`.
    device: where it lives awake.
    file: its weights.
    used: bytes that it holds on a GPU, and what tells the bytes in use on it.
    """

    def __init__(self, model: SpeechModel, path: Path, device: str, held: int, weights: int, used: Any) -> None:
        self._model, self._file, self._on_cpu = model, path / "model.bin", device == "cpu"
        self._held_awake, self._weights, self._used = held, weights, used
        self._base = psutil.Process().memory_info().rss
        self._known: tuple[list[list[int]], float] | None = None
        self._signature: tuple[int, int, int] | None = None

    def expected(self) -> Held:
        """What it will hold asleep."""
        left = max(0, self._held_awake - self._weights)
        return Held(device_bytes=left, host_bytes=0 if self._on_cpu else self._base + self._weights)

    def host_bytes(self) -> int:
        return 0 if self._on_cpu else psutil.Process().memory_info().rss

    async def down(self) -> Held:
        return await asyncio.to_thread(self._down)

    async def up(self) -> Held:
        return await asyncio.to_thread(self._up)

    def _down(self) -> Held:
        if self._known is None:
            self._known = self._hear()
        self._signature, used = self._stat(), self._used()
        for replica in self._replicas():
            replica.unload_model(to_cpu=not self._on_cpu)
        if self._on_cpu:
            with suppress(AttributeError):  # glibc only: else it keeps what was freed
                ctypes.CDLL(None).malloc_trim(0)
            return Held(device_bytes=psutil.Process().memory_info().rss)
        freed = max(0, used - self._used())
        return Held(device_bytes=max(0, self._held_awake - freed), host_bytes=self.host_bytes())

    def _up(self) -> Held:
        if self._on_cpu and self._stat() != self._signature:
            raise EngineFailed(f"{self._file.name} is another file than when this model fell asleep")
        for replica in self._replicas():
            replica.load_model()
        assert self._known is not None
        (tokens, score), (known_tokens, known_score) = self._hear(), self._known
        if tokens != known_tokens or abs(score - known_score) > SAME:
            raise EngineFailed("the model woke with other weights: it does not hear what it heard before")
        on_device = psutil.Process().memory_info().rss if self._on_cpu else self._held_awake
        return Held(device_bytes=on_device, host_bytes=self.host_bytes())

    def _replicas(self) -> list[Any]:
        return [whisper.model for whisper in (self._model.whisper, self._model._beside) if whisper is not None]

    def _hear(self) -> tuple[list[list[int]], float]:
        """What each copy of the weights hears in the same half second of noise."""
        noise = np.random.default_rng(0).standard_normal(8_000).astype(np.float32) * 0.1
        listen = Listen(self._model.features(noise), 0.5, language="en")
        copies = [whisper for whisper in (self._model.whisper, self._model._beside) if whisper is not None]
        heard: list[Heard] = [one for whisper in copies for one in self._model._hear(whisper, [listen])]
        tokens = [[token for said in one.segments for token in said.tokens] for one in heard]
        return tokens, sum(one.avg_logprob for one in heard)

    def _stat(self) -> tuple[int, int, int]:
        found = self._file.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns
