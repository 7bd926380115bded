"""Decode recordings to samples, in processes that can be killed.

A decoder serves one recording after another and is kept warm. It is replaced if it was killed or left early, or has
served many. Samples come in blocks through a pipe, so hours of sound are never in memory on either side.
"""

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from models.speech.decoder import RATE, DecoderLimits
from registry.bounds import USUAL, Bounds
from registry.errors import BadRequest, EngineFailed, RoundhouseError, TooLarge, Unavailable

Samples = npt.NDArray[np.float32]

START_SECONDS = 30.0
WAIT_PART = 0.1
"""Seconds of waiting allowed for each second of sound received. Decoding takes about a thousandth of a second."""
JOBS = 200
"""Recordings after which a decoder is replaced, to bound leaks in the libraries."""


class _Process:
    """A decoder process, used by one thread at a time."""

    def __init__(self, bounds: Bounds) -> None:
        self.jobs = 0
        environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        fit = bounds.model_dump_json(include=set(DecoderLimits._fields))
        self._child = subprocess.Popen(
            [sys.executable, "-S", "-P", str(Path(__file__).with_name("decoder.py")), fit],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._in, self._out = self._child.stdin, self._child.stdout
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN | select.POLLHUP)
        self.ready = False

    def begin(self, path: str, seconds: float) -> None:
        """Send a recording to decode. Raises EOFError or TimeoutError if the process is gone."""
        if not self.ready and self.frame(START_SECONDS)[0] != b"E":
            raise EngineFailed("the decoder did not start")
        self.ready = True
        self.jobs += 1
        try:
            self._in.write(json.dumps({"path": path, "seconds": seconds}).encode() + b"\n")
            self._in.flush()
        except OSError:
            raise EOFError from None
        if self.frame(START_SECONDS)[0] != b"A":
            raise EngineFailed("the decoder did not take a recording")

    def frame(self, timeout: float) -> tuple[bytes, bytes]:
        """Read the next frame. Raises EOFError if the process ended, TimeoutError if it is late."""
        deadline = time.monotonic() + timeout
        kind, length = struct.unpack("<cI", self._exactly(5, deadline))
        return kind, self._exactly(length, deadline)

    def _exactly(self, count: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            part = os.read(self._out.fileno(), min(count - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    @property
    def usable(self) -> bool:
        return self.jobs < JOBS and self._child.poll() is None

    def ended(self) -> int | None:
        """Return how the decoder ended: a negative signal number or the exit code, None if unknown."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._child.wait(1.0)
        return None

    def kill(self) -> None:
        """Kill the process. Its pipes stay open with this object, as another thread may be reading."""
        self._child.kill()
        self._child.wait()


class Decoders:
    """A pool of warm decoders. Thread-safe. spare: how many idle ones are kept.

    | state  | open          | close                                       |
    |--------|---------------|---------------------------------------------|
    | open   | works         | ends decoders, busy ones once they are done |
    | closed | EngineFailed  | no-op                                       |
    """

    def __init__(self, bounds: Bounds = USUAL, spare: int = 2) -> None:
        self._bounds, self._spare = bounds, spare
        self._idle: list[_Process] = []
        self._lock = threading.Lock()
        self._closed = False

    def warm(self) -> None:
        """Start one decoder. Returns at once, a fraction of a second before it is ready."""
        self._give_back(_Process(self._bounds))

    def reads_header(self, path: str, within: float) -> bool:
        """Return whether a decoder gets through the header of `path` in so many seconds, and survives it.

        It may then refuse the file.
        """
        with self.open(path, 0.0, within) as recording:
            with contextlib.suppress(RoundhouseError):
                for _ in recording:
                    pass  # there are no samples in 0 seconds
            return recording.has_ended

    def open(self, path: str, max_seconds: float, patience: float | None = None) -> "Recording":
        """Start decoding `path`. Iterating raises TooLarge beyond `max_seconds`.

        patience: longest wait for a block; None for the server's bound.
        """
        with self._lock:
            if self._closed:
                raise EngineFailed("the speech engine is closed")
            process = self._idle.pop() if self._idle else None
        if process is None or not process.usable:
            process = _Process(self._bounds)
        try:
            process.begin(path, max_seconds)
        except (EOFError, TimeoutError, EngineFailed):
            process.kill()
            process = _Process(self._bounds)  # a warm one may have been killed by the kernel, so try a new one
            try:
                process.begin(path, max_seconds)
            except (EOFError, TimeoutError):
                process.kill()
                raise EngineFailed("the decoder of recordings does not start") from None
        return Recording(process, self._give_back, self._bounds.decoder_wait_seconds if patience is None else patience)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.kill()

    def _give_back(self, process: _Process) -> None:
        with self._lock:
            if process.usable and not self._closed and len(self._idle) < self._spare:
                self._idle.append(process)
                return
        process.kill()


class Recording:
    """A recording that is being decoded. Leaving the context early kills the decoder."""

    def __init__(self, process: _Process, give_back: Callable[[_Process], None], patience: float) -> None:
        """patience: longest wait for a block, and, with WAIT_PART added, for all blocks."""
        self._patience = patience
        self._process = process
        self._give_back = give_back
        self._waited = 0.0
        self._closed = False
        self.has_ended = False
        """Whether the decoder said that it has done or refused all, so that it can serve the next."""
        self.samples = 0
        """Number of samples so far."""
        self.length: float | None = None
        """Seconds according to the file, known with the first block; None if it does not say."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Samples]:
        """Yield blocks of at most 8 seconds: one channel, 16 kHz, between -1 and 1.

        Raises BadRequest if the file is not a recording, is damaged or has no sound, TooLarge if it is too long.
        """
        while not self.has_ended:
            kind, body = self._next()
            if kind == b"S":
                block = np.frombuffer(body, dtype="<i2").astype(np.float32) / 32768.0
                self.samples += len(block)
                yield block
            elif kind == b"D":
                self.length = float(body) if body else None
            else:
                self.has_ended = True
                if kind == b"X":
                    raise _refusal(*body.decode("utf-8", "replace").split("\t", 1))

    def _next(self) -> tuple[bytes, bytes]:
        began = time.monotonic()
        allowed = self._patience + WAIT_PART * self.samples / RATE - self._waited
        try:
            return self._process.frame(min(self._patience, allowed))
        except TimeoutError:
            raise BadRequest("The recording takes too long to decode.", code="invalid_audio", param="file") from None
        except EOFError:
            how = None if self._closed else self._process.ended()
            if how == -signal.SIGKILL:  # by the kernel, which no recording can cause
                raise Unavailable(
                    "The server ran out of memory while it decoded the recording. Send it again.",
                    code="out_of_memory",
                    retry_after=5,
                ) from None
            if how is not None and how > 0:  # Python's own exit: our fault, or an unexpected library version
                raise EngineFailed(f"the decoder of recordings ended with exit code {how}") from None
            raise BadRequest(
                "The recording could not be decoded: its decoder crashed on it.", code="invalid_audio", param="file"
            ) from None
        finally:
            self._waited += time.monotonic() - began

    def close(self) -> None:
        """Close. Safe to call twice, and while a thread waits, which then gets BadRequest."""
        if self._closed:
            return
        self._closed = True
        if self.has_ended:
            self._give_back(self._process)
        else:
            self._process.kill()


def _refusal(why: str, sentence: str = "The recording could not be decoded.") -> RoundhouseError:
    if why == "fault":
        return EngineFailed(f"the decoder of recordings failed: {sentence}")
    if why == "too_long":
        return TooLarge(f"{sentence} Send it in parts.", code="audio_too_long", param="file")
    return BadRequest(sentence, code="invalid_audio", param="file")
