"""Quick scores during and after training, by a teacher-forced pass each (see objective.exact)."""

from __future__ import annotations

from random import Random

import torch

from starter_training.chat.network import Shape, Weights
from starter_training.chat.objective import exact
from starter_training.chat.tasks.conversations import QUESTIONS, REFUSAL, SMALL_TALK, TASK_NAMES, Example, heldout, vary


def rounded(weights: Weights, dtype: torch.dtype, arithmetic: torch.dtype) -> Weights:
    """Return the weights rounded to `dtype`, in which they are written, and cast to the dtype of computation."""
    return {name: value.detach().to(dtype).to(arithmetic) for name, value in weights.items()}


def skill_scores(weights: Weights, shape: Shape, n: int) -> dict[str, float]:
    """Return the share right per task on held-out inputs with the task's reserved token, on which adapters build."""
    groups = [[Example(q, a, skill=i) for q, a in heldout(name)[:n]] for i, name in enumerate(TASK_NAMES)]
    return _by_task(exact(weights, groups, shape))


def talk_scores(weights: Weights, shape: Shape, n: int) -> dict[str, float]:
    """Return the shares right of questions and small talk, as written and varied, of refusals of held-out inputs, and
    of task answers without an adapter, which should be 0."""
    rng = Random("talk scores")
    questions = [(q, a) for wordings, a in QUESTIONS for q in wordings]
    chat = [(q, a) for wordings, a in SMALL_TALK for q in wordings]
    inputs = [pair for name in TASK_NAMES for pair in heldout(name)[:n]]
    sets = {
        "questions": questions, "questions varied": [(vary(rng, q), a) for q, a in questions for _ in range(3)],
        "small talk": chat, "small talk varied": [(vary(rng, q), a) for q, a in chat for _ in range(3)],
        "refusals": [(q, REFUSAL) for q, _ in inputs], "tasks without adapter": inputs,
    }  # fmt: skip
    return {
        name: round(exact(weights, [[Example(q, a) for q, a in pairs]], shape).float().mean().item(), 4)
        for name, pairs in sets.items()
    }


def own_scores(
    weights: Weights, adapters: Weights, shape: Shape, n: int, tasks: tuple[str, ...] = TASK_NAMES
) -> dict[str, float]:
    """Return the share right per task on held-out inputs with its own adapter. `adapters` has those of `tasks`."""
    groups = [[Example(q, a) for q, a in heldout(name)[:n]] for name in tasks]
    return _by_task(exact(weights, groups, shape, adapters), tasks)


def wrong_scores(weights: Weights, adapters: Weights, shape: Shape, n: int) -> dict[str, float]:
    """Return the mean share right per task over the nineteen other adapters."""
    total = torch.zeros(len(TASK_NAMES))
    for shift in range(1, len(TASK_NAMES)):
        order = [(i + shift) % len(TASK_NAMES) for i in range(len(TASK_NAMES))]
        groups = [[Example(q, a) for q, a in heldout(TASK_NAMES[i])[:n]] for i in order]
        total[order] += exact(weights, groups, shape, adapters).float().mean(1)
    return {name: round(total[i].item() / (len(TASK_NAMES) - 1), 4) for i, name in enumerate(TASK_NAMES)}


def _by_task(right: torch.Tensor, tasks: tuple[str, ...] = TASK_NAMES) -> dict[str, float]:
    return {name: round(value, 4) for name, value in zip(tasks, right.float().mean(1).tolist(), strict=True)}


def in_words(scores: dict[str, float]) -> str:
    """Return a line for the log, with the worst first."""
    return " ".join(f"{name}={value:.3f}" for name, value in sorted(scores.items(), key=lambda item: item[1]))
