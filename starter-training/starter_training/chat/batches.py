"""Batches of packed conversations, made by worker processes so that the device never waits.

A row holds several conversations one after the other; each starts at position 0 again and sees only itself. All
batches of one kind have one shape, so there is no padding to speak of and one compiled program serves them all.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from starter_training.chat.tasks.conversations import TASK_NAMES, Example, adapter_example, base_example
from starter_training.chat.tokens import PAD, encode
from starter_training.children import end_with_parent


@dataclass(frozen=True)
class Batch:
    """Packed rows. All arrays are [rows, length].

    ids: token ids. positions: place within its conversation, 0 at each start and at padding. weights: how much the
    prediction of the token that FOLLOWS counts, 0 where it is not part of an answer.
    """

    ids: NDArray[np.int16]
    positions: NDArray[np.int16]
    weights: NDArray[np.float16]


def pack(draw: Callable[[], Example], rows: int, length: int) -> Batch:
    """Fills rows with conversations; one that does not fit any more opens the next row, one too long is left out.

    An answer of n tokens counts n**0.5 in all: by example alone long answers are learnt too late, by token alone the
    short labels drown.
    """
    ids = np.full((rows, length), PAD, np.int16)
    positions = np.zeros((rows, length), np.int16)
    weights = np.zeros((rows, length), np.float16)
    count = np.arange(length, dtype=np.int16)
    waiting: tuple[list[int], int] | None = None
    for row in range(rows):
        at = 0
        while True:
            whole, prompt = waiting or encode(draw())
            waiting = None
            end = at + len(whole)
            if end > length:
                waiting = (whole, prompt) if len(whole) <= length else None
                break
            ids[row, at:end] = whole
            positions[row, at:end] = count[: len(whole)]
            weights[row, at + prompt - 1 : end - 1] = (len(whole) - prompt) ** -0.5
            at = end
    return Batch(ids, positions, weights)


def unpacked(examples: Sequence[Example]) -> Batch:
    """One conversation per row, for scoring; rows are as long as the longest, rounded up to 32."""
    coded = [encode(example) for example in examples]
    length = -(-max(len(whole) for whole, _ in coded) // 32) * 32
    ids = np.full((len(coded), length), PAD, np.int16)
    positions = np.zeros((len(coded), length), np.int16)
    weights = np.zeros((len(coded), length), np.float16)
    for row, (whole, prompt) in enumerate(coded):
        ids[row, : len(whole)] = whole
        positions[row, : len(whole)] = np.arange(len(whole), dtype=np.int16)
        weights[row, prompt - 1 : len(whole) - 1] = 1
    return Batch(ids, positions, weights)


def base_batch(rng: Random, rows: int, length: int) -> Batch:
    """One batch for the base: [rows, length]."""
    return pack(lambda: base_example(rng), rows, length)


def adapter_batch(rng: Random, rows: int, length: int, tasks: tuple[str, ...] = TASK_NAMES) -> Batch:
    """One batch for the adapters of `tasks`: [tasks * rows, length], the rows of a task together, in their order."""
    parts = [pack(lambda name=name: adapter_example(rng, name), rows, length) for name in tasks]  # type: ignore[misc]
    return Batch(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.weights for part in parts]),
    )


Maker = Callable[[Random, int, int], Batch]


def _work(make: Maker, seed: str, rows: int, length: int, out: multiprocessing.Queue[Batch]) -> None:
    end_with_parent()
    rng = Random(seed)
    while True:
        out.put(make(rng, rows, length))


@contextmanager
def stream(make: Maker, seed: str, rows: int, length: int, workers: int) -> Iterator[Callable[[], Batch]]:
    """Starts `workers` processes and gives a function that returns the next batch; ends them at the close.

    With no workers the batches are made in this process (exactly repeatable, as with one worker). Raises RuntimeError
    when no batch comes for 60 s.
    """
    if workers == 0:
        rng = Random(f"{seed} 0")
        yield lambda: make(rng, rows, length)
        return
    context = multiprocessing.get_context("spawn")
    out: multiprocessing.Queue[Batch] = context.Queue(maxsize=4 * workers)
    names = [f"{seed} {index}" for index in range(workers)]
    running = [context.Process(target=_work, args=(make, name, rows, length, out), daemon=True) for name in names]
    for process in running:
        process.start()

    def take() -> Batch:
        try:
            return out.get(timeout=60)
        except queue.Empty:
            raise RuntimeError("the data workers made no batch for 60 s") from None

    try:
        yield take
    finally:
        for process in running:
            process.terminate()
        out.close()
        out.cancel_join_thread()
        for process in running:
            process.join(5)
