"""The processes that make training data while the model trains: speakers (espeak-ng) and planners.

They are forked before the accelerator is used, and never import torch themselves.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from starter_training.children import end_with_parent
from starter_training.speech.plans import SLOTS, Item, Plan, Planner
from starter_training.speech.synthesis import corpus

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.sharedctypes import SynchronizedArray

    from starter_training.speech.mixing import Mixer

PLANNERS = 3


SHORT, LONG = (300, 400, 640), (3000, 3000, 3000)
"""Window sizes in mel frames: cheap ones at first, then faster-whisper's 30 s."""


@dataclass(frozen=True)
class Evaluation:
    """A shard of held-out utterances, made by the first speakers, and the name of its test."""

    name: str
    path: Path
    items: list[Item]


def _speaker(number: int, seed: int, folder: Path, until: float, test: tuple[str, int] | None, out: Queue[Any]) -> None:
    end_with_parent()
    os.nice(5)
    if test is not None:
        name, count = test
        rng = random.Random(name)
        stated = [corpus.random_utterance(rng, held_sentence=True, held_voice=name == "voices") for _ in range(count)]
        shard = corpus.make_shard(stated)
        path = folder / f"{name}.npz"
        corpus.save_wave(shard, path)
        out.put(Evaluation(name, path, shard.items))
    rng = random.Random(f"{seed}/{number}")
    part = 0
    while part == 0 or time.monotonic() < until:
        # The first shards are small, so that training can begin after a few seconds.
        stated = [
            corpus.random_utterance(rng, held_sentence=False, held_voice=False) for _ in range(min(600, 80 * 2**part))
        ]
        shard = corpus.make_shard(stated)
        path = folder / f"{number}-{part}.npz"
        corpus.save_wave(shard, path)
        out.put((path, shard.items))
        part += 1


def _planner(seed: int, news: Queue[Any], expected: SynchronizedArray[int], out: Queue[Any]) -> None:
    end_with_parent()
    planner, rng = Planner(seed), random.Random(seed)
    known = False
    while True:
        try:
            while True:
                message = news.get(block=not known)
                if message is None:
                    return
                planner.add(*message)
                known = True
        except queue.Empty:
            pass
        with expected.get_lock():
            *sizes, budget = expected[:]
        frames = rng.choice(sizes)
        out.put(planner.plan(frames, max(2, budget // frames), min(SLOTS, max(1, frames // 250))))


class Factory:
    """Starts the processes and returns what they make."""

    def __init__(self, workers: int, seed: int, seconds: float, budget: int, tests: dict[str, int]) -> None:
        context = mp.get_context("fork")
        # Containers often have a tiny /dev/shm; then shards use the normal temporary folder.
        memory = Path("/dev/shm")
        root = memory if memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30 else None
        self._folder = tempfile.TemporaryDirectory(prefix="starter-speech-", dir=root)
        self._shards = context.Queue()
        self._plans = context.Queue(maxsize=8)
        self._requested = context.Array("i", [*SHORT, budget])
        self._news = [context.Queue() for _ in range(PLANNERS)]
        self.evaluations: list[Evaluation] = []
        folder, until = Path(self._folder.name), time.monotonic() + seconds
        pending = list(tests.items())
        self._processes: list[BaseProcess] = [
            context.Process(
                target=_speaker,
                args=(number, seed, folder, until, pending.pop() if pending else None, self._shards),
                daemon=True,
            )
            for number in range(workers)
        ]
        self._processes += [
            context.Process(
                target=_planner, args=(seed * 100 + number, news, self._requested, self._plans), daemon=True
            )
            for number, news in enumerate(self._news)
        ]
        for process in self._processes:
            process.start()

    def ask(self, sizes: tuple[int, int, int], budget: int) -> None:
        """Change the window sizes and the mel frames per batch. Plans that are already made are still used."""
        with self._requested.get_lock():
            self._requested[:] = [*sizes, budget]

    def collect(self, mixer: Mixer, block_seconds: float = 0.0, most: int = 4) -> int:
        """Load up to ``most`` finished shards into the mixer; returns their number."""
        loaded = 0
        while loaded < most:
            try:
                message = self._shards.get(timeout=block_seconds) if block_seconds else self._shards.get_nowait()
            except queue.Empty:
                break
            if isinstance(message, Evaluation):
                self.evaluations.append(message)
                continue
            path, items = message
            with np.load(path) as arrays:
                begin = mixer.add(arrays["wave"], arrays["phonemes"])
            path.unlink()
            if begin is not None:
                for news in self._news:
                    news.put((items, begin))
            loaded += 1
        return loaded

    def plan(self) -> Plan:
        """Wait for the next plan and return it. Fails if the planners have ended."""
        plan: Plan = self._plans.get(timeout=120)
        return plan

    def close(self) -> None:
        """Stop all processes and remove their files."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(5)
        self._folder.cleanup()
