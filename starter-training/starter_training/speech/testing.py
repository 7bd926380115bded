"""Scores on held-out speech during training, on the training device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from starter_training.speech import scoring, tokens
from starter_training.speech.factory import Evaluation
from starter_training.speech.mixing import Mixer
from starter_training.speech.network import Trainee
from starter_training.speech.plans import SLOTS, Item, Plan

_FRAMES, _GAP = 3000, 6400


def _plan(rows: Sequence[Sequence[Item]], begin: int) -> Plan:
    """Plan a window for each row, with 0.4 s between its utterances and without labels."""
    count = len(rows)
    start = np.full((count, SLOTS), 1 << 40, np.int64)
    source, length = np.zeros((count, SLOTS), np.int64), np.zeros((count, SLOTS), np.int64)
    end = np.full(count, 200, np.int64)
    for row, items in enumerate(rows):
        position = 3200
        for slot, item in enumerate(items):
            start[row, slot], source[row, slot], length[row, slot] = position, begin + item[1], item[2]
            position += item[2] + _GAP
            end[row] = min(_FRAMES, (position - _GAP) // 160 + 10)
    ids = np.full((count, 1), tokens.ids().start, np.int64)
    ones = np.ones((count, SLOTS), np.float32)
    speech = length[:, 0] > 0
    return Plan(
        _FRAMES, start, source, length, ones, ones, end, np.zeros(count, np.int64), speech, ids, ids, ids - ids,
        ids - ids,
    )  # fmt: skip


def _packs(items: Sequence[Item]) -> list[list[Item]]:
    packs: list[list[Item]] = [[]]
    used = 0
    for item in items:
        if len(packs[-1]) == 6 or used + item[2] + _GAP > 28 * 16000:
            packs.append([])
            used = 0
        packs[-1].append(item)
        used += item[2] + _GAP
    return packs


@torch.no_grad()
def scores(model: Trainee, evaluations: list[Evaluation], device: torch.device, limit: int) -> dict[str, float]:
    """Return the WER by test set of ``limit`` utterances, with and without timestamps, and how often noise got text."""
    result: dict[str, float] = {}
    model.eval()
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        for evaluation in sorted(evaluations, key=lambda evaluation: evaluation.name):
            mixer = Mixer(device, hours=0.5, seed=1)
            with np.load(evaluation.path) as arrays:
                begin = mixer.add(arrays["wave"], arrays["phonemes"])
            items = evaluation.items[:limit]
            kinds = {"": [[item] for item in items], "_packed": _packs(items)}
            for kind, rows in kinds.items():
                expected = [" ".join(item[0] for item in row) for row in rows]
                batch = mixer.batch(_plan(rows, begin or 0), clean=True)
                for timed in (False, True) if kind else (False,):
                    received = scoring.greedy(model, batch, timed=timed, longest=120 if kind else 24)
                    name = evaluation.name + kind + ("_timed" if timed else "")
                    result[name] = round(scoring.word_error_rate(list(zip(expected, received, strict=True))), 4)
        noise = Mixer(device, hours=0.01, seed=2)
        noise.add(np.zeros(3200, np.int16), np.zeros(10, np.uint8))
        batch = noise.batch(_plan([[] for _ in range(max(4, limit // 4))], 0))
        received = scoring.greedy(model, batch, timed=False, longest=8)
        result["noise_with_text"] = round(sum(bool(text) for text in received) / len(received), 4)
    model.train()
    return result
