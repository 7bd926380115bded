"""Batches of packed conversations, made by worker processes so that the device never waits.

A row has several conversations one after another; each starts at position 0 and attends only to itself. All batches of
a kind have the same shape, so there is hardly any padding, and one compiled program serves them all.
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

    Attributes:
        ids: token ids.
        positions: position within the conversation, 0 at each start and at padding.
        weights: weight of predicting the NEXT token, 0 where that is not part of an answer.
    """

    ids: NDArray[np.int16]
    positions: NDArray[np.int16]
    weights: NDArray[np.float16]


def pack(draw: Callable[[], Example], rows: int, length: int) -> Batch:
    """Fill rows with conversations. One that no longer fits begins the next row; one that is too long is left out.

    An answer of n tokens has a total weight of n**0.5: with equal weights per example long answers are learnt too late,
    with equal weights per token short labels are lost among them.
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
    """Return one conversation per row, for scoring. Rows have the length of the longest, rounded up to 32."""
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
    """Return a batch for the base: [rows, length]."""
    return pack(lambda: base_example(rng), rows, length)


def adapter_batch(rng: Random, rows: int, length: int, tasks: tuple[str, ...] = TASK_NAMES) -> Batch:
    """Return a batch for the adapters of `tasks`: [tasks * rows, length], grouped by task in their order."""
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
    """Run `workers` processes and yield a function that returns the next batch.

    Without workers, batches are made in this process; that is exactly repeatable, as with one worker. The function
    raises RuntimeError if no batch arrives within 60 s.
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
