"""Word error rate, and greedy decoding on the training device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from starter_training.speech import tokens

if TYPE_CHECKING:
    from starter_training.speech.mixing import Batch
    from starter_training.speech.network import Trainee


def word_errors(expected: str, received: str) -> int:
    """Return the fewest insertions, deletions and substitutions of words between ``received`` and ``expected``."""
    left, right = expected.split(), received.split()
    previous = list(range(len(right) + 1))
    for row, word in enumerate(left, 1):
        current = [row]
        for column, other in enumerate(right, 1):
            current.append(min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (word != other)))
        previous = current
    return previous[-1]


def word_error_rate(pairs: Sequence[tuple[str, str]]) -> float:
    """Return errors divided by words for (expected, received) pairs."""
    words = sum(len(expected.split()) for expected, _ in pairs)
    return sum(word_errors(expected, received) for expected, received in pairs) / max(1, words)


@torch.no_grad()
def greedy(model: Trainee, batch: Batch, *, timed: bool, longest: int) -> list[str]:
    """Transcribe windows of 3,000 frames; returns the words of each. Timestamps may come in any order."""
    ids = tokens.ids()
    states = model.encode(batch.features, batch.offset)
    rows = states.shape[0]
    prompt = [ids.start] if timed else [ids.start, ids.no_timestamps]
    stated = torch.tensor([prompt], device=states.device).repeat(rows, 1)
    done = torch.zeros(rows, dtype=torch.bool, device=states.device)
    for step in range(longest):
        logits = model.decode(stated, states)[0][:, -1].float()
        if step == 0:
            logits[:, ids.no_speech] = -torch.inf
        following = logits.argmax(-1).masked_fill(done, ids.end)
        stated = torch.cat([stated, following[:, None]], 1)
        done |= following == ids.end
        if step % 8 == 7 and bool(done.all()):
            break
    return [tokens.to_text(row) for row in stated.tolist()]
