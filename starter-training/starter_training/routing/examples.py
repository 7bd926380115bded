"""Texts with their targets, drawn like the chat model's. Inputs that are held out there are held out here, too."""

from __future__ import annotations

from random import Random

from routing.intents.model import OUT
from routing.intents.training import Example
from starter_training.chat.tasks.conversations import held_out_inputs, heldout, task_pair, vary
from starter_training.chat.tasks.on_text import TEXT_TASKS
from starter_training.chat.tasks.phrases import OTHER_QUESTIONS, QUESTIONS, SMALL_TALK
from starter_training.chat.tasks.sentences import sentence, word

ROUTES = (
    "iso-date", "words-to-digits", "digits-to-words", "compare-numbers", "sentiment", "mask-pii", "intent",
    "extract-json",
)  # fmt: skip
TALK = "starter-chat"
_TALK_HELD_OUT = 8
"""One in so many wordings of each question is held out for the measurement."""


def _wordings(held_out: bool) -> list[str]:
    found = [wordings for group in (QUESTIONS, SMALL_TALK) for wordings, _ in group]
    return [
        text
        for wordings in found
        for number, text in enumerate(wordings)
        if (len(wordings) > 2 and number % _TALK_HELD_OUT == 2) == held_out
    ]


def _other_question(rng: Random) -> str:
    form = rng.choice(OTHER_QUESTIONS)
    return vary(rng, form.format(w=word(rng, 0.4), v=word(rng, 0.4), n=rng.randint(1, 99), m=rng.randint(1, 99)))


def _no_number(text: str) -> bool:
    """Return whether a sentence has no number; otherwise it could just as well be for `digits-to-words`."""
    return not any(letter.isdigit() for letter in text)


def _other(rng: Random) -> str:
    held = held_out_inputs()
    while True:
        text = _other_question(rng) if rng.random() < 0.4 else sentence(rng)
        if text.lower() not in held and (_no_number(text) or "plus" in text):
            return text


def drawn(seed: int, each: int, others: int) -> list[Example]:
    """Draw training examples: `each` for every route, and `others` that belong to none."""
    rng = Random(seed)
    found = [Example(task_pair(rng, name)[0], name) for name in ROUTES for _ in range(each)]
    found += [Example(vary(rng, rng.choice(_wordings(False))), TALK) for _ in range(each)]
    found += [Example(_other(rng), OUT) for _ in range(others)]
    return found


def held_out(each: int) -> list[Example]:
    """Draw held-out examples: `each` for every route, wordings of talk, and as many others as all of these."""
    rng = Random("auto held out")
    found = [Example(text, name) for name in ROUTES for text, _ in heldout(name, each)]
    talk = _wordings(True)
    found += [Example(vary(rng, rng.choice(talk)), TALK) for _ in range(each)]
    texts = [text for name in TEXT_TASKS for text, _ in heldout(name, each) if _no_number(text)]
    rng.shuffle(texts)
    return found + [Example(text, OUT) for text in texts[: len(found)]]
