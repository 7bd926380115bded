"""The shipped chat pack reaches its figures, and its engine answers as transformers and peft with the same weights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from starter_training import cards, figures
from starter_training.chat import evaluate
from starter_training.chat.answers import BASE, Answer, Question, Served
from starter_training.chat.report import Matrix, table
from starter_training.chat.tasks.conversations import QUESTIONS, TASK_NAMES, heldout

pytestmark = pytest.mark.real
PACK = figures.PACK
INPUTS = 20
"""Held-out inputs per task in these tests; the figures are from 200."""
TIE = 2e-3
"""Difference of logits within which either token is right. The test then continues with the engine's token.

Engine and reference compute in float32 on the shipped bfloat16 weights, but sum in different orders. (In bfloat16, as
served, both round to steps of 1/16 or more, so answers of which the model is unsure may differ.)
"""


@pytest.fixture(scope="module")
def section() -> figures.Section:
    return figures.load()[BASE]


@pytest.fixture(scope="module")
def matrix(section: figures.Section) -> Matrix:
    return Matrix(**section["measured"])


@pytest.fixture(scope="module")
def right() -> dict[str, float]:
    """Share of right answers of each adapter on its own task, teacher-forced on the first inputs."""
    return _shares(evaluate.own_forced(PACK, INPUTS))


def _shares(right: Any) -> dict[str, float]:
    return dict(zip(TASK_NAMES, right.float().mean(1).tolist(), strict=True))


def test_the_weights_are_those_that_were_measured(section: figures.Section) -> None:
    assert len(section["files"]) == 1 + len(TASK_NAMES)
    assert figures.changed(PACK, section) == []


def test_swapped_weights_or_figures_are_noticed(section: figures.Section) -> None:
    first, second = sorted(section["files"])[:2]
    swapped = {**section["files"], first: section["files"][second], second: section["files"][first]}
    assert figures.changed(PACK, {"files": swapped}) == [first, second]


def test_each_adapter_is_as_good_as_its_figure(matrix: Matrix, right: dict[str, float]) -> None:
    assert figures.off(matrix.own(), right, INPUTS) == {}


def test_wrong_adapters_are_wrong(matrix: Matrix) -> None:
    """Each task with its neighbour's adapter, so that the figures would fail if the weights were swapped."""
    names = (*TASK_NAMES[1:], TASK_NAMES[0])
    moved = _shares(evaluate.own_forced(PACK, INPUTS, names))
    assert sum(moved.values()) / len(moved) <= 0.05
    assert len(figures.off(matrix.own(), moved, INPUTS)) == len(TASK_NAMES)


def test_the_base_does_none_of_the_tasks(matrix: Matrix) -> None:
    right = evaluate.base_forced(PACK, INPUTS)
    assert right.float().mean().item() <= 0.05
    assert matrix.base() <= 0.05
    assert matrix.summary()["wrong_mean"] <= 0.05


def test_the_card_is_written_from_the_figures(matrix: Matrix) -> None:
    text = (PACK / BASE / "CARD.md").read_text()
    assert text == cards.card(BASE, PACK)
    assert table(matrix) in text
    for name, share in matrix.own().items():
        assert (f"`{name}`: {100 * share:.1f} %" in text) == (share < 0.95)


def test_held_out_inputs_are_two_hundred_a_task_and_never_trained() -> None:
    from random import Random

    from starter_training.chat.tasks.conversations import held_out_inputs, task_pair

    assert all(len(set(heldout(name))) == 200 for name in TASK_NAMES)
    held, rng = held_out_inputs(), Random(5)
    assert not any(task_pair(rng, name)[0].lower() in held for name in TASK_NAMES for _ in range(20))


class Reference:
    """transformers and peft in float32 on the shipped files."""

    def __init__(self) -> None:
        import torch
        from peft import PeftModel
        from transformers import AutoTokenizer, LlamaForCausalLM

        self.tokenizer = AutoTokenizer.from_pretrained(PACK / BASE)
        base = LlamaForCausalLM.from_pretrained(PACK / BASE, dtype=torch.float32)
        first, *others = TASK_NAMES
        self.model = PeftModel.from_pretrained(base, _folder(first), adapter_name=f"task-{first}")
        for name in others:
            self.model.load_adapter(_folder(name), adapter_name=f"task-{name}")
        self.model.eval()

    def prompt(self, text: str) -> tuple[int, ...]:
        """Return the token ids of the chat template with `text` as the user's turn."""
        message = [{"role": "user", "content": text}]
        whole = self.tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return tuple(self.tokenizer(whole, add_special_tokens=False)["input_ids"])

    def gaps(self, adapter: str | None, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> list[float]:
        """Return how far each token of an answer is below the best logit, given the tokens before it."""
        import torch

        with torch.no_grad(), self._weights(adapter):
            ids = torch.tensor([[*prompt, *tokens]])
            logits = self.model(ids).logits[0, len(prompt) - 1 : -1].float()
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        return (logits.max(dim=1).values - chosen).tolist()  # type: ignore[no-any-return]

    @contextmanager
    def _weights(self, adapter: str | None) -> Iterator[None]:
        if adapter is None:
            with self.model.disable_adapter():
                yield
        else:
            self.model.set_adapter(f"task-{adapter}")
            yield


def _folder(name: str) -> Path:
    return PACK / "adapters" / name


async def _served(questions: list[Question]) -> list[Answer]:
    async with Served(PACK / BASE, {name: _folder(name) for name in TASK_NAMES}, "float32") as served:
        return await served.ask_all(questions)


def test_greedy_answers_of_the_engine_equal_transformers_and_peft(matrix: Matrix) -> None:
    """Every adapter and the base in one batch. Each token of the engine must be the reference's best one, or a TIE."""
    requested: list[Question] = []
    expected: list[str] = []
    for number in range(2):
        for name in TASK_NAMES:
            text, want = heldout(name)[number]
            requested.append(Question(name, text, len(want.encode()) + 8))
            expected.append(want)
        wordings, want = QUESTIONS[number]
        requested.append(Question(None, wordings[0], len(want.encode()) + 8))
        expected.append(want)
    answers = asyncio.run(_served(requested))  # before the reference, whose OpenMP threads would disturb the fork
    reference = Reference()
    worst = 0.0
    for question, answer in zip(requested, answers, strict=True):
        assert answer.prompt == reference.prompt(question.text)
        gaps = reference.gaps(question.adapter, answer.prompt, answer.tokens)
        assert max(gaps) <= TIE, (question, answer.text, max(gaps))
        worst = max(worst, *gaps)
    right = sum(answer.text == want for answer, want in zip(answers, expected, strict=True))
    mean = matrix.summary()["own_mean"]
    assert abs(right / len(requested) - mean) <= figures.spread(mean, len(requested)), f"worst gap {worst}"
